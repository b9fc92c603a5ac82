"""The server's side of a round: what visits draw from, what came back, what it cost, and who failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hansa.engines.session import ClientDiverged, CohortReply, Coming, Reply
from hansa.errors import Diverged, HansaError
from hansa.io.store import fingerprint
from hansa.orchestrate.planner import without
from hansa.running.phase_run import PhaseRun
from hansa.seeds import seed_for, seeds_for
from hansa.tree import is_finite

TRY = "Lower the learning rates, or bound the steps with 'clip', and run again."


class RoundBook:
    """Keeps the books of the round at hand for an engine."""

    def __init__(self, run: PhaseRun):
        self.run = run
        self.failed: dict[str, str] = {}  # clients that could not be used, and why
        self.diverged = 0  # of these, those whose uploads were not finite
        self.noted: dict[str, Any] = {}  # for the record of the round

    def _where(self, round: int | None = None) -> tuple[int, str, int, int]:
        number = self.run.round if round is None else round
        return self.run.experiment.seed, "visit", self.run.place, number

    def seed(self, client: str, visit: int) -> int:
        """Return what a client's visit of this round draws from; a second visit draws anew."""
        return seed_for(*self._where(), client) if visit == 0 else seed_for(*self._where(), client, visit)

    def seeds(self, clients: Sequence[str]) -> list[int]:
        """Return the seeds of many clients' first visits."""
        return seeds_for(*self._where(), names=clients)

    def take(self, reply: Reply) -> None:
        """Store the client's next state, remember its upload where asked, and charge the visit."""
        run, store = self.run, self.run.store
        if reply.state:
            store.put(f"{run.index}/client", reply.state, reply.client)
        if run.phase.remember != "nothing":
            store.put(f"{run.index}/fingerprint", {"mark": fingerprint(reply.upload)}, reply.client)
        if run.phase.remember == "uploads":
            store.put(f"{run.index}/upload", reply.upload, reply.client)
        run.ledger.add(reply, run.setup_bytes_of(reply.client))

    def take_cohort(self, reply: CohortReply) -> None:
        """Charge many visits at once."""
        self.run.ledger.add_cohort(reply, self.run.setup_bytes)

    def refuse(self, client: str, error: Exception) -> None:
        """Note that the round goes on without a client."""
        self.failed[client] = str(error)
        self.diverged += isinstance(error, ClientDiverged)

    def note(self, told: Mapping[str, Any]) -> None:
        """Add something to the record of the round."""
        self.noted |= told

    def ahead(self) -> Iterator[Coming]:
        """Yield the rounds of the phase that are still to come."""
        run = self.run
        for number in range(run.round + 1, run.phase.rounds):
            cohort = number // run.algorithm.exchanges
            missing = run.planner.missing(cohort)
            clients = [client for leg in run.planner.round(cohort) for client in without(leg.chain, missing)]
            seeds = seeds_for(*self._where(number), names=clients)
            yield Coming(number, clients, seeds, run.due(number - 1))

    def check(self, visited: int) -> None:
        """End the run where too few clients are left; what was committed stays, so it can be resumed."""
        if visited - len(self.failed) >= max(1.0, self.run.phase.minimum * visited):
            return
        says = f"{len(self.failed)} of {visited} clients failed. {next(iter(self.failed.values()))}"
        if self.diverged == len(self.failed):
            raise Diverged(f"{self._place()} diverged: {says} {TRY}")
        raise HansaError(f"{self._place()}: {says}")

    def check_server(self, clients: Sequence[str]) -> None:
        """End the run where the server's state is not finite any more, before anything of it is kept."""
        odd = next((key for key, leaf in self.run.server.items() if not is_finite(leaf)), None)
        if odd is not None:
            named = ", ".join(f"'{client}'" for client in clients[:5]) + (", …" if len(clients) > 5 else "")
            says = f"the server's '{odd}' is not finite after the uploads of {len(clients)} clients ({named})"
            raise Diverged(f"{self._place()} diverged: {says}. {TRY}")

    def _place(self) -> str:
        return f"Round {self.run.round + 1} of phase '{self.run.phase.name}'"
