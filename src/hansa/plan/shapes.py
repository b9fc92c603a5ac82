"""Clients whose inputs differ in shape or columns: the task they share, and which phases they can go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hansa.contract import Algorithm
from hansa.engines.upload_check import UploadCheck, made_up
from hansa.errors import HansaError
from hansa.lazy import torch
from hansa.models.parts import fitted, follows_clients
from hansa.payload import Update, set_apart
from hansa.running.experiment import Phase
from hansa.task import ClientInputs, Column, Model, Network, Task
from hansa.tree import Tree

UPLOAD = "the upload of client"
TRIED = 3  # kinds of clients that are tried; others differ from them in width alone


def networks_of(model: Model, clients: Mapping[str, ClientInputs]) -> tuple[Network, dict[str, Network]]:
    """Return the network that clients have in common, and those of clients that have another, by name."""
    common = fitted(model, list(clients.values()))
    if not follows_clients(model):
        return common, {}
    own = {name: fitted(model, [one]) for name, one in clients.items()}
    return common, {name: network for name, network in own.items() if network != common}


def some_sites() -> dict[str, ClientInputs]:
    """Return two sites with columns of their own, made up to try a plan on before its data is loaded."""
    columns = {"one": "ab", "another": "bcd"}
    return {
        name: ClientInputs(name, (len(own),), tuple(Column(column) for column in own)) for name, own in columns.items()
    }


def misfit(phase: Phase, task: Task, clients: Mapping[str, ClientInputs], differ: str = "") -> str:
    """Return why a phase cannot have clients with such inputs; empty where it can, or nobody can tell.

    Made-up samples, two a client, are visited for some of the shapes and networks there are, and the server steps.
    Where the clients are made up too, `differ` says what is known of the real ones.
    """
    shapes = sorted({one.shape for one in clients.values()})
    clients = _told_apart(task, clients)
    kinds = {(one.shape, task.networks.get(name)): one for name, one in reversed([*clients.items()])}
    tried = sorted(kinds.values(), key=lambda one: one.shape == task.input_shape)[:TRIED]
    alike, algorithm = [ClientInputs(one.client, task.input_shape) for one in tried], phase.algorithm
    failure = None
    for alone in (True, False) if len(kinds) > 1 else ():  # a robust rule asks for several clients at a time
        failure = _failure(algorithm, task, tried, alone)
        if failure is None or _failure(algorithm, replace(task, networks={}), alike, alone) is None:
            break
    if failure is None:
        return ""
    at, error = failure
    why = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    if differ:  # shapes of made-up clients tell nothing of the real ones
        told = f"{differ} ({why})" if isinstance(error, HansaError) and not at.startswith(UPLOAD) else differ
    else:
        told = f"{_told(shapes)} ({at}: {why})"
    return (
        f"Phase '{phase.name}' shares leaves that do not fit all clients, {told}. "
        "Use 'personal' with keep = \"features\", 'flic-hl' or 'local', the model 'column-tokens' for tables, or "
        'columns_of = "union" or "common" with an algorithm that averages.'
    )


def _told(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return in words which shapes the inputs of clients have."""
    words = ["×".join(map(str, shape)) for shape in shapes]
    if len(words) == 1:
        return f"whose inputs are {words[0]} columns each, and not the same"
    return f"whose inputs are of shapes {', '.join(words[:-1])} and {words[-1]}"


def _told_apart(task: Task, clients: Mapping[str, ClientInputs]) -> dict[str, ClientInputs]:
    """Widen the inputs of clients that have as many columns as others, and other ones: weights would fit all the same.

    Clients whose networks follow their columns are apart already.
    """
    seen: dict[tuple[tuple[int, ...], Network | None], list[tuple[Column, ...]]] = {}
    found = dict(clients)
    for name, one in clients.items():
        kinds = seen.setdefault((one.shape, task.networks.get(name)), [])
        if one.columns not in kinds:
            kinds.append(one.columns)
        if more := kinds.index(one.columns):
            found[name] = replace(one, shape=(one.shape[0] + more, *one.shape[1:]))
    return found


def _failure(
    algorithm: Algorithm, task: Task, clients: Sequence[ClientInputs], alone: bool
) -> tuple[str, Exception] | None:
    """Return where and how clients with such inputs fail in a round together, or alone too; None where they do not."""
    at = "together"
    try:
        server = algorithm.server_init(task)
        down = algorithm.broadcast(task, server, torch.Generator().manual_seed(0))
        total = Update({}, 0.0, 0)
        for client in clients:
            at = f"client '{client.client}'"
            up = _upload(algorithm, task, client, down)
            at = f"{UPLOAD} '{client.client}'"
            UploadCheck(algorithm)(task, down, up, 2, client.client)
            up = set_apart(algorithm.uplink, client.client, up)
            total = up + total
            if alone:
                algorithm.server_step(task, server, up)
        at = "together"
        algorithm.server_step(task, server, total)
    except Exception as error:  # whatever an algorithm or a network raises over inputs that it cannot read
        return at, error
    return None


def _upload(algorithm: Algorithm, task: Task, client: ClientInputs, down: Tree) -> Update:
    data, rng = made_up(replace(task, input_shape=client.shape)), torch.Generator().manual_seed(0)
    view, own = task.view(data, {}, client.client), task.received(client.client, down)
    up, _ = algorithm.client_step(view, own, algorithm.client_init(view, data), data, rng)
    sums = {key: leaf.nan_to_num() for key, leaf in up.sums.items()}  # to diverge on made-up samples is no misfit
    return replace(up, sums=algorithm.decode(task, algorithm.encode(sums)))


def sites_of(model: Model, outputs: int, real: bool) -> tuple[Task, Mapping[str, ClientInputs]]:
    """Return a task of made-up sites."""
    clients = some_sites()
    common, own = networks_of(model, clients)
    return Task(common.model, common.input_shape, outputs, len(clients), real=real, networks=own), clients
