"""Privacy of whole clients: McMahan et al., Learning Differentially Private Recurrent Language Models (2018)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from hansa.algorithms.fedavg import FedAvg
from hansa.channels.accounting import Cohorts, Release, calibrated
from hansa.channels.fixed_point import FORMATS
from hansa.channels.noise import Noise, noised, source
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import torch
from hansa.payload import Role, Update
from hansa.task import ClientData, Task
from hansa.training.visits import Visit
from hansa.training.wrappers import Wrapper
from hansa.tree import Tree, norm, scale

FINEST = 16 * 2.0 ** -FORMATS["steps"].bits  # deviations of noise whose rounding cannot be told from noise


@dataclass(frozen=True)
class Private(Wrapper):
    """Wraps an algorithm that averages: all that becomes known of a phase is (ε, δ)-differentially private of a client.

    A client divides its upload by what it counts, so that all count the same, and shortens it to the length C, `clip`,
    over all of its leaves together: `u_k ← u_k·min(1, C/‖u_k‖₂)`.  The server, which is trusted, adds `N(0, (z·C)²)` to
    every number of the sum and divides by m, the clients that a round asks, whoever answers: `Δ = (Σ u_k + noise)/m`
    (Algorithm 1, with the estimator f_f).  So no weight tells anything, and only what is noised is kept.

    z is the least for which all rounds together keep ε.  Who is visited follows from the plan's seed, so by default a
    client counts as known in every round that visits it; with `cohorts = "secret"`, for seeds that nobody knows, the
    draw protects too.  Noise is the operating system's; `simulated` noise can be repeated, and protects nobody.  An
    infinite ε and clip, which no plan file may hold, are the wrapped algorithm with uniform weights.

    With `trust = "distributed"` and the channel `secure-sum` the server need not be trusted: every client adds
    `N(0, (z·C)²/t)` to its own upload, where t is the number of clients without whom no sum is opened.  The sum of all
    who answer then has at least the noise above, and nobody sees anything else (Our Data, Ourselves, Dwork 2006).
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    epsilon: float = 8.0
    delta: float = 1e-5
    clip: float = 1.0
    noise: Noise = "system"
    cohorts: Literal["known", "secret"] = "known"
    trust: Literal["central", "distributed"] = "central"

    def __post_init__(self) -> None:
        name, roles = type(self.inner).__name__, set(self.inner.uplink.values())
        for key in ("epsilon", "clip"):
            value = getattr(self, key)
            require(value > 0, f"The '{key}' of Private must be a number > 0. Got {value}.")
        require(0 < self.delta < 1, f"The 'delta' of Private must lie between 0 and 1. Got {self.delta}.")
        bounded = math.isfinite(self.clip) or math.isinf(self.epsilon)
        require(bounded, "The 'clip' of Private must be finite: noise hides only what is bounded. Got inf.")
        require(Role.EACH not in roles, f"Private cannot wrap {name}, whose server looks at single uploads.")
        averages = Role.STEP in roles and not self.inner.one_shot
        says = f"Private can wrap algorithms that average what clients trained only. Got {name}"
        require(averages, f"{says}: the closed form 'fed3r' has a 'privacy' of its own.")
        whole = not self.inner.partial
        require(whole, f"Private needs the same leaves of every client, and of {name} some may not upload all.")
        once = self.cohorts == "known" or self.inner.exchanges == 1
        require(once, f"Private with cohorts = 'secret' cannot wrap {name}, which visits every cohort several times.")

    @property
    def no_chains(self) -> str:
        """The length of an upload bounds what its own client changed, not what it changed in the uploads after it."""
        return "clipping does not bound what a client changes in the uploads of those after it"

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state, if all it sums up is about leaves of the model."""
        server, name = self.inner.server_init(task), type(self.inner).__name__
        odd = sum_over_samples(self.inner, server, task)
        require(not odd, f"Private cannot wrap {name}: its '{odd}' is a sum over samples, which must not be shortened.")
        finest = self.multiplier(task) * self.clip / math.sqrt(task.population)  # which calibrates, or says why not
        coarse = not self._shared or finest > FINEST
        says = f"The 'clip' of Private is too small for noise in {task.population} shares"
        require(coarse, f"{says}, which the fixed point of a secure sum would round away. Got {self.clip}.")
        return server

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Carry out the wrapped visit; upload what it gives shortened, as one client among equals."""
        up, state = yield from self.inner.visit(task, down, state, data, rng)
        length = norm(up.sums) / up.weight
        require(math.isfinite(length), "An upload with numbers that are not finite has no length to be shortened to.")
        factor = min(1.0, self.clip / max(length, 1e-300)) / up.weight
        sums = self._with_share(task, scale(up.sums, factor), rng) if self._shared else scale(up.sums, factor)
        return replace(up, sums=sums, weight=1.0), state

    @property
    def _shared(self) -> bool:
        """Whether clients add the noise, each a share of it."""
        return self.trust == "distributed" and math.isfinite(self.epsilon)

    def _with_share(self, task: Task, sums: Tree, rng: torch.Generator) -> Tree:
        """Return an upload with a client's share of the noise; with all of it where nobody knows how many answer."""
        deviation = self.multiplier(task) * self.clip / math.sqrt(task.opened or 1)
        return noised(sums, deviation, rng if self.noise == "simulated" else None)

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        """Return nothing: no noise would protect it."""
        return {}

    def observes_start(self, task: Task) -> bool:
        """Tell that they do not."""
        return False

    def heaviest(self, samples: int) -> float:
        """Return one: all clients count the same."""
        return 1.0

    def multiplier(self, task: Task) -> float:
        """Return z, the noise of a round in units of C."""
        if math.isinf(self.epsilon):
            return 0.0
        return calibrated(self.epsilon, self.delta, task.visits or task.rounds, self._sampled(task))

    def _sampled(self, task: Task) -> Cohorts | None:
        secret = self.cohorts == "secret" and task.cohort > 0
        return Cohorts(task.cohort, task.population, task.rounds) if secret else None

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped step from the noised sum, as if all who were asked had answered."""
        lacks = ", ".join(cohort.without)
        require(not lacks, f"Private needs the same leaves of every client, and some did not upload {lacks}.")
        z = 0.0 if self._shared else self.multiplier(task)
        rng = source(self.noise, task.seed, task.place, task.round)
        sums = noised(cohort.sums, z * self.clip, rng) if z else cohort.sums
        total = Update(sums, float(task.cohort or task.population), cohort.count, cohort.flops)
        return self.inner.server_step(replace(task, samples=0), server, total)  # all count the same

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return the rounds of the whole phase: they are booked when it begins."""
        if math.isinf(self.epsilon):
            return None
        z, count, sampled = self.multiplier(task), task.visits or task.rounds, self._sampled(task)
        return (Release(z, count, "client", self.trust, self.noise, self.delta, sampled),)


def sum_over_samples(algorithm: Algorithm, server: Tree, task: Task, but: Collection[str] = ()) -> str:
    """Return a group that an algorithm sums up over samples instead of leaves of the model; empty where none is."""
    names = task.params().keys()
    for group, role in algorithm.uplink.items():
        if group in but:
            continue
        found = [re.fullmatch(rf"(?:inner\.)*{group}\.(.+)", key) for key in server if role is Role.SUM]
        if not {match[1] for match in found if match} <= names:
            return group
    return ""
