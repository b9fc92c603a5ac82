"""The engine for clients at sites elsewhere, to whom it speaks in letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from hansa.data.federation import Federation
from hansa.engines.carriers import Carriage
from hansa.engines.far_session import FarSession
from hansa.engines.relay import SuperLink
from hansa.engines.session import PhaseContext
from hansa.errors import require
from hansa.io.registry import Piece, name_of
from hansa.io.system import require_local_sockets


@dataclass(frozen=True)
class Flower:
    """Sends one letter to every site and round; `patience` is how long an answer is waited for, in seconds.

    Samples, states and secrets stay at the sites.  Clients of a site that does not answer are left out of the round.
    """

    carrier: Annotated[Carriage, Piece("carrier")] = SuperLink()
    patience: float = 600.0

    def __post_init__(self) -> None:
        says = "The 'patience' of the flower engine must be a number of seconds > 0"
        require(self.patience > 0, f"{says}. Got {self.patience}.")
        if isinstance(self.carrier, SuperLink):
            require_local_sockets()

    def elsewhere(self) -> Federation | None:
        """Return the clients at the sites, where these hold the data and the plan does not."""
        return self.carrier.federation() if isinstance(self.carrier, SuperLink) else None

    def choice(self, context: PhaseContext) -> dict[str, object]:
        """Return how visits will be carried out."""
        return {"name": "flower", "carrier": name_of("carrier", self.carrier), "device": "cpu"}

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[FarSession]:
        """Open the way to the sites; it is closed with the phase."""
        with self.carrier.open(context) as carrier:
            yield FarSession(context=context, carrier=carrier, patience=self.patience)
