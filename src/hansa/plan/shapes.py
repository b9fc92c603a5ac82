"""Clients whose inputs differ in shape or columns: the task they share, and which phases they can go through."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hansa.contract import Algorithm
from hansa.data.dataset import Source
from hansa.data.sources.mixed import Mixed
from hansa.data.sources.table import TableSource
from hansa.engines.upload_check import UploadCheck, made_up
from hansa.errors import HansaError
from hansa.lazy import torch
from hansa.models.parts import fitted, follows_clients
from hansa.payload import Update, set_apart
from hansa.running.experiment import Phase
from hansa.task import ClientData, ClientInputs, Column, Model, Network, Task
from hansa.tree import Tree

FEATURES = 8  # columns of frozen features in a trial, whatever there are
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


def glimpsed(source: Source, *, features: bool) -> tuple[dict[str, ClientInputs], str]:
    """Return what clients with inputs of their own are like before any is loaded, and in words how they differ.

    The words are empty where they do not differ, or nobody can tell.  Sites with columns of their own are made up.  Of
    several sources, with `features`, what is no table becomes frozen features.
    """
    if isinstance(source, TableSource) and source.apart:
        return some_sites(), 'which have columns of their own (columns_of = "file")'
    if not isinstance(source, Mixed):
        return {}, ""
    clients = dict(source.glances())
    if features:
        tables = {name for name, one in clients.items() if one.columns}
        clients = {name: clients[name] if name in tables else _frozen(name) for name in source.sources}
    if len({(one.shape, one.columns) for one in clients.values()}) < 2:
        return clients, ""
    told = (f"{name}: {_glimpse(one, features=features)}" for name, one in clients.items())
    return clients, f"whose inputs differ ({', '.join(told)})"


def _frozen(name: str) -> ClientInputs:
    return ClientInputs(name, (FEATURES,))


def _glimpse(one: ClientInputs, *, features: bool) -> str:
    if one.columns:
        return f"a table of {len(one.columns)} columns" if len(one.columns) > 1 else "a table of one column"
    return "frozen features" if features else "×".join(map(str, one.shape))


def misfits(
    phases: Sequence[Phase],
    task: Task,
    clients: Mapping[str, ClientInputs],
    differ: str = "",
    *,
    individual: bool = False,
) -> list[str]:
    """Return why phases cannot have clients with such inputs; empty where they can, or nobody can tell.

    Where the clients are made up, `differ` says what is known of the real ones.  `individual` tells whether they may
    begin with models of their own.
    """
    apart = [individual or any(one.algorithm.personal for one in phases[: place + 1]) for place in range(len(phases))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of made-up samples is about no data of the user's
        found = [_misfit(one, task, clients, differ, own) for one, own in zip(phases, apart, strict=True)]
    return [why for why in found if why]


def _misfit(phase: Phase, task: Task, clients: Mapping[str, ClientInputs], differ: str, individual: bool) -> str:
    """Return why a phase cannot have such clients, which deploy models of their own or the same one.

    Made-up samples, two a client, are visited for some of the shapes and networks there are, the server steps, and
    these clients deploy what it serves.
    """
    shapes = sorted({one.shape for one in clients.values()})
    clients = _told_apart(task, clients)
    kinds = {(one.shape, task.networks.get(name)): one for name, one in reversed([*clients.items()])}
    tried = sorted(kinds.values(), key=lambda one: one.shape == task.input_shape)[:TRIED]
    alike, algorithm = [ClientInputs(one.client, task.input_shape) for one in tried], phase.algorithm
    for alone in (True, False) if len(kinds) > 1 else ():  # a robust rule asks for several clients at a time
        failure = _failure(algorithm, task, tried, alone, individual)
        if failure is None or _failure(algorithm, replace(task, networks={}), alike, alone, individual) is None:
            break
    else:  # what fails where clients are alike, too, is not about their inputs
        return ""
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
    algorithm: Algorithm, task: Task, clients: Sequence[ClientInputs], alone: bool, individual: bool
) -> tuple[str, Exception] | None:
    """Return where and how clients with such inputs fail in a round together, or alone too; None where they do not."""
    at = "together"
    try:
        server = algorithm.server_init(task)
        down = algorithm.broadcast(task, server, torch.Generator().manual_seed(0))
        total, states = Update({}, 0.0, 0), dict[str, Tree]()
        for client in clients:
            at = f"client '{client.client}'"
            up, states[client.client] = _visit(algorithm, task, client, down)
            at = f"{UPLOAD} '{client.client}'"
            UploadCheck(algorithm)(task, down, up, 2, client.client)
            up = set_apart(algorithm.uplink, client.client, up)
            total = up + total
            if alone:
                algorithm.server_step(task, server, up)
        at = "together"
        served = algorithm.serve(task, algorithm.server_step(task, server, total))
        deployed: tuple[Task, Tree] | None = None
        for client in clients:
            at = f"client '{client.client}'"
            if deployed is None or individual or task.networks:  # else all deploy the same
                deployed = _deployed(algorithm, task, client, served, states[client.client])
            algorithm.outputs(*deployed, _samples(task, client).x)
    except Exception as error:  # whatever an algorithm or a network raises over inputs that it cannot read
        return at, error
    return None


def _visit(algorithm: Algorithm, task: Task, client: ClientInputs, down: Tree) -> tuple[Update, Tree]:
    data, rng = _samples(task, client), torch.Generator().manual_seed(0)
    view, own = task.view(data, {}, client.client), task.received(client.client, down)
    up, state = algorithm.client_step(view, own, algorithm.client_init(view, data), data, rng)
    sums = {key: leaf.nan_to_num() for key, leaf in up.sums.items()}  # to diverge on made-up samples is no misfit
    return replace(up, sums=algorithm.decode(task, algorithm.encode(sums))), state


def _deployed(algorithm: Algorithm, task: Task, client: ClientInputs, served: Tree, state: Tree) -> tuple[Task, Tree]:
    data, rng = _samples(task, client), torch.Generator().manual_seed(0)
    view = task.view(data, {}, client.client)
    return view, algorithm.deploy(view, task.received(client.client, served), state, data, rng)


def _samples(task: Task, client: ClientInputs) -> ClientData:
    return made_up(replace(task, input_shape=client.shape))


def task_of(model: Model, clients: Mapping[str, ClientInputs], *, real: bool) -> Task:
    """Return a task of two outputs for clients before their data is loaded."""
    common, own = networks_of(model, clients)
    return Task(common.model, common.input_shape, 2, len(clients), real=real, networks=own)
