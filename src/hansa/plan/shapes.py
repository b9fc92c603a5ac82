"""Clients whose inputs differ in shape or columns: the task they share, and which phases they can go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hansa.contract import Algorithm
from hansa.engines.upload_check import UploadCheck, made_up
from hansa.lazy import torch
from hansa.payload import Update, set_apart
from hansa.running.experiment import Phase
from hansa.task import ClientInputs, Column, Model, Network, Task, fitted, follows_clients
from hansa.tree import Tree

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


def misfit(phase: Phase, task: Task, clients: Mapping[str, ClientInputs]) -> str:
    """Return why a phase cannot have clients with such inputs; empty where it can, or nobody can tell.

    Made-up clients of two samples are visited, for some of the shapes and networks there are, and the server steps.
    """
    kinds = {(one.shape, task.networks.get(name)): one for name, one in reversed([*clients.items()])}
    tried = sorted(kinds.values(), key=lambda one: one.shape == task.input_shape)[:TRIED]
    alike, algorithm = [ClientInputs(one.client, task.input_shape) for one in tried], phase.algorithm
    why = ""
    for alone in (True, False) if len(kinds) > 1 else ():  # a robust rule asks for several clients at a time
        why = _fails(algorithm, task, tried, alone)
        if not why or not _fails(algorithm, replace(task, networks={}), alike, alone):
            break
    if not why:
        return ""
    shapes = " and ".join(sorted({"×".join(map(str, one.shape)) for one in tried}))
    return (
        f"Phase '{phase.name}' shares leaves that do not fit all clients, whose inputs are of shapes {shapes} ({why}). "
        "Use 'personal' with keep = \"features\", 'flic-hl' or 'local', the model 'column-tokens' for tables, or "
        'columns_of = "union" or "common" with an algorithm that averages.'
    )


def _fails(algorithm: Algorithm, task: Task, clients: Sequence[ClientInputs], alone: bool) -> str:
    """Return why clients with such inputs cannot go through a round together, or alone too; empty where they can."""
    at = "together"
    try:
        server = algorithm.server_init(task)
        down = algorithm.broadcast(task, server, torch.Generator().manual_seed(0))
        total = Update({}, 0.0, 0)
        for client in clients:
            at = f"client '{client.client}'"
            up = _upload(algorithm, task, client, down)
            UploadCheck(algorithm)(task, down, up, 2, client.client)
            up = set_apart(algorithm.uplink, client.client, up)
            total = up + total
            if alone:
                algorithm.server_step(task, server, up)
        at = "together"
        algorithm.server_step(task, server, total)
    except Exception as error:  # whatever an algorithm or a network raises over inputs that it cannot read
        return f"{at}: {str(error).partition(chr(10))[0].rstrip('.') or type(error).__name__}"
    return ""


def _upload(algorithm: Algorithm, task: Task, client: ClientInputs, down: Tree) -> Update:
    data, rng = made_up(replace(task, input_shape=client.shape)), torch.Generator().manual_seed(0)
    view, own = task.view(data, {}, client.client), task.received(client.client, down)
    up, _ = algorithm.client_step(view, own, algorithm.client_init(view, data), data, rng)
    return replace(up, sums=algorithm.decode(task, algorithm.encode(up.sums)))


def sites_of(model: Model, outputs: int, real: bool) -> tuple[Task, Mapping[str, ClientInputs]]:
    """Return a task of made-up sites."""
    clients = some_sites()
    common, own = networks_of(model, clients)
    return Task(common.model, common.input_shape, outputs, len(clients), real=real, networks=own), clients
