"""A client that joins after a run: it learns its own part of the model by local work, and nothing is sent.

In every phase that left clients with something of their own, the newcomer is visited as they were: it receives what the
server sends at the end of the phase, trains, and keeps its state.  What it would upload is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hansa.data.sites import site
from hansa.data.sources.encoding import Encoding
from hansa.data.sources.files import existing
from hansa.data.split import Division
from hansa.deploy.model import DeployedModel, as_deployed, finished, opened_store
from hansa.deploy.predict import is_table, label_numbers, read_samples, real_targets
from hansa.deploy.restored import last_phase
from hansa.engines.client_side import ClientSide
from hansa.engines.session import ClientFailed, perform
from hansa.errors import HansaError, require
from hansa.io.trust import Trust, TrustLike
from hansa.lazy import torch
from hansa.models.parts import fitted, follows_clients
from hansa.plan.files import read_plan
from hansa.results.reader import Run
from hansa.running.phase_run import PhaseRun
from hansa.seeds import generator, seed_for
from hansa.task import ClientData, ClientInputs, Network
from hansa.tree import Tree, pick

ROUNDS = 10  # local rounds, where nobody says how many


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A client with training samples alone."""

    train: ClientData
    test: ClientData | None = None
    validation: ClientData | None = None

    @property
    def size(self) -> int:
        """Training samples."""
        return len(self.train)


def adapt(
    source: str | Path | Run,
    data: str | Path | ClientData,
    client: str,
    *,
    rounds: int = ROUNDS,
    trust: TrustLike = False,
) -> DeployedModel:
    """Return the model of a client that was not in a finished run, learnt from its samples in some local `rounds`.

    `data` is a file as `hansa predict` reads it, with labels, or samples as the model reads them.  The run folder is
    only read.
    """
    require(rounds >= 1, f"The 'rounds' of a client that joins must be a whole number ≥ 1. Got {rounds}.")
    run, trusted = source if isinstance(source, Run) else Run.open(source), Trust.of(trust)
    finished(run)
    there = client in run.recorded("clients")
    require(not there, f"The run in '{run.path}' has a client '{client}' already: use 'hansa save --client {client}'.")
    plan = read_plan(run.path / "plan.toml", trust=trusted)
    with opened_store(run) as store:
        last = last_phase(run, store, trusted)
        _check_personal(run, last)
        reader = as_deployed(run, plan, last, last.task, {}, client)
        samples, encoding = _samples(reader, data, client)
        columns = () if encoding is None else encoding.columns
        network = fitted(plan.model, [ClientInputs(client, tuple(samples.x.shape[1:]), columns)])
        networks = {client: network} if follows_clients(plan.model) else {}
        side = _joined(last, client, samples, rounds, networks)
        task, weights = side.deployed(client, last.served())
        return as_deployed(run, plan, last, task, weights, client, encoding)


def _check_personal(run: Run, last: PhaseRun) -> None:
    """Refuse a run after which all clients have the same model: there is nothing that one could learn by itself."""
    personal = any(phase.algorithm.personal for phase in _phases(last))
    says = f"No phase of the run in '{run.path}' leaves clients with a part of the model of their own"
    # Where networks follow clients' columns there is no global one, and nobody has learnt the newcomer's.
    follow = f"to learn: continue the run by a phase of 'local' (start.run = \"{run.path}\"), and adapt what it leaves"
    as_is = f"so a new one uses the global model as it is: 'hansa save {run.path} OUT' writes it"
    require(personal, f"{says} {follow}." if "encodings" in run.data else f"{says}, {as_is}.")


def _phases(last: PhaseRun) -> list[PhaseRun]:
    """Return all phases up to one, the first one first, also those of a run that was continued."""
    before = [] if last.previous is None else _phases(last.previous)
    return [*before, last]


def _samples(reader: DeployedModel, data: str | Path | ClientData, client: str) -> tuple[ClientData, Encoding | None]:
    """Return labelled samples, read as the run's own data was; a table of columns of its own, with their encoding."""
    if isinstance(data, ClientData):
        return data, None
    file, table = existing(str(data), "file"), reader.card.table
    if table is None or table.rows == "text" or reader.card.encoding is not None or not is_table(table, file):
        return _read(reader, file), None
    whole = table.joined_by(file, () if reader.real else reader.class_names)
    found = site(client, whole, Division({client: np.arange(len(whole.train))}))
    return found.client.train, found.encoding


def _read(reader: DeployedModel, file: Path) -> ClientData:
    held = read_samples(reader, file)
    if held.labels is None:
        raise HansaError(f"'{file}' has no labels, and a client learns from labelled samples; add them.")
    columns = len(reader.target_names)
    known = (
        real_targets(held.labels, columns, file)
        if reader.real
        else label_numbers(held.labels, reader.class_names, file)
    )
    x, y = reader.tensor(held.x), torch.from_numpy(known)
    require(len(x) == len(y) > 0, f"'{file}' has {len(x)} samples and {len(y)} labels; give as many of both.")
    return ClientData(x, y)


def _joined(
    last: PhaseRun, client: str, samples: ClientData, rounds: int, networks: Mapping[str, Network]
) -> ClientSide:
    """Return the newcomer's side of the last phase, after its visits in every phase where clients learn their own."""
    side: ClientSide | None = None
    states: dict[int, Tree] = {}
    for run in _phases(last):
        side = run.side_with({client: Newcomer(samples)}, _stored(states, run.place), side)
        side = replace(side, task=replace(side.task, networks={**side.task.networks, **networks}))
        _check_width(run, side, client, samples)
        if run.algorithm.personal:
            _visit(run, side, client, states, 1 if run.algorithm.one_shot else rounds)
    assert side is not None
    return side


def _stored(states: dict[int, Tree], place: int) -> Callable[[str], Tree | None]:
    """Return what finds the newcomer's state of a phase, whenever that is asked for."""
    return lambda _: states.get(place)


def _visit(run: PhaseRun, side: ClientSide, client: str, states: dict[int, Tree], rounds: int) -> None:
    """Visit the newcomer some times; its schedules go over its own rounds, and what it uploads is thrown away."""
    seed = run.experiment.seed
    for number in range(rounds):
        task = replace(side.task, round=number, rounds=rounds)
        down = run.algorithm.broadcast(task, run.current(), generator(seed, "adapt", run.place, number))
        try:
            reply = perform(side, task, client, seed_for(seed, "adapt", run.place, client, number), down)
        except ClientFailed as error:
            raise HansaError(f"Phase '{run.phase.name}': {error}") from error
        states[run.place] = reply.state
        if not reply.state:  # nothing is kept from visit to visit, so another would do the same again
            return


def _check_width(run: PhaseRun, side: ClientSide, client: str, samples: ClientData) -> None:
    """Refuse samples that a shared part of the model cannot read."""
    own = side.view(client, samples).params()
    shared = pick("model", run.broadcast()) | pick("model", run.served())
    odd = next((key for key, leaf in shared.items() if key in own and own[key].shape != leaf.shape), None)
    shape, wanted = ("×".join(map(str, one)) for one in (samples.x.shape[1:], run.task.input_shape))
    says = f"The samples of client '{client}' have the shape {shape}, and those of the run {wanted}"
    needs = "only an algorithm whose clients own what reads their samples, such as 'personal' with keep = 'features'"
    require(odd is None, f"{says}. The shared '{odd}' of phase '{run.phase.name}' cannot read them: {needs}, can.")
