"""Fed3R: Fanì et al., Resource-Efficient Personalization in Federated Learning with Closed-Form Classifiers (2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hansa.algorithms.ridge_sums import SumsRidge
from hansa.algorithms.statistics import (
    RELEASE,
    Precision,
    Ridge,
    Upload,
    check_ridge,
    chosen_ridge,
    collect,
    empty,
    encode,
    from_tree,
    regress,
    regression_from_tree,
    ridge_exhibits,
    to_tree,
    with_head,
)
from hansa.channels.accounting import Release, Trust
from hansa.channels.noise import source
from hansa.errors import HansaError, require
from hansa.lazy import torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Update
from hansa.ridge import GaussianMechanism, Normalize, RegressionStatistics, RidgeStatistics, adassp, project_positive
from hansa.ridge.plausible import implausible
from hansa.ridge.regression import blank as regression_blank
from hansa.task import ClientData, Task
from hansa.tree import Tree, add, nest, pick


@dataclass(frozen=True)
class Fed3R(SumsRidge):
    """A ridge classifier from statistics that add up, so one visit a client gives exactly the centralised solution.

    Client k uploads `A_k = Z_kᵀZ_k`, `b_k = Z_kᵀY_k` and class counts (eqs. 7, 8) for `Z_k = φ(X_k)`; packed, that is
    the upper triangle and the columns of the classes it holds; as a `factor`, as many rows as it has samples, which is
    less where these are fewer than features, and as exact.  The server solves `W = (A + λI)⁻¹ b` (eq. 6) and divides
    every column by its norm (`column`; the workshop version weighs by `Γ^α`, `gamma`).  λ is chosen from the sums by
    generalised cross-validation (`gcv`), or a number, as the papers' 0.01.  Sums are float64 always; `products` is what
    features are multiplied in; `wire` is what travels.  On random features this is Fed3R-RF.  AFL (He et al. 2025),
    which sums `A_k + γI` over K clients and takes Kγ off again, is the same classifier.

    Real targets Y take the place of one-hot labels: `b_k = Z_kᵀY_k`, with sums of z, y and y² beside it, so that the
    intercept, which is not penalised, is exact too; they travel in float64 and nothing is normalised.

    With `privacy` features are clipped and noise is added: by the server to a round's sum (`central`, a trusted server
    or a secure sum), or by every client to its own statistics (`local`), which then tells neither its number of samples
    nor what it computed, and sends the same release however often it is asked.  A central server keeps what is noised
    and no more; with `keep_sums` also the sums themselves, so that a client can be forgotten, which is another release.
    Cross-validation would fit the noise, so there λ follows from how large that is (`adassp`, in place of `gcv`).
    """

    ridge: Ridge | Literal["adassp"] = "gcv"  # with privacy "adassp"
    normalize: Normalize = "column"
    alpha: float = 0.8
    intercept: bool | None = None  # None: for real targets, and not for classes
    products: Precision = "float32"
    wire: Precision = "float32"
    upload: Upload = "packed"
    privacy: GaussianMechanism | None = None
    trust: Trust = "central"
    keep_sums: bool = False  # the exact sums stay beside a central release

    def __post_init__(self) -> None:
        noised = self.privacy is not None
        if noised and self.ridge == "gcv":
            object.__setattr__(self, "ridge", "adassp")  # so that plans and records say what is done
        if self.ridge != "adassp":
            check_ridge(self.ridge, "Fed3R")
        says = "The sums of Fed3R with privacy are noised"
        needed = noised or self.ridge != "adassp"
        require(needed, "The ridge 'adassp' of Fed3R is for sums with noise: use 'gcv', or set 'privacy'.")
        require(not noised or self.upload != "factor", f"{says} or limited, and have no factor: use upload = 'packed'.")
        needed = not self.keep_sums or self._central
        require(needed, "The 'keep_sums' of Fed3R is for central privacy: without noise at the server sums are kept.")

    @property
    def _central(self) -> bool:
        """Whether the server adds noise."""
        return self.privacy is not None and self.trust == "central"

    @property
    def pools(self) -> bool:
        """Whether sums are over samples: a client that adds noise or limits its statistics is one of its own."""
        return self.privacy is None or (self.trust == "central" and self.privacy.client_norm is None)

    def upload_shape(self, task: Task, data: ClientData) -> Tree:
        """Return shapes that depend on the classes a client holds."""
        if task.real:
            return regression_blank(self.width(task), task.outputs, torch.float64)
        return super().upload_shape(task, data)

    def server_init(self, task: Task) -> Tree:
        """Return empty statistics: λ enters once, when solving."""
        factored = task.real and self.upload == "factor"
        require(not factored, "The upload 'factor' of Fed3R is for classes, and the targets are real numbers.")
        nothing = empty(task, self.width(task))
        if self.privacy is None:
            return nothing
        require(not task.real, "The privacy of Fed3R is for classes, and the targets are real numbers.")
        self.privacy.booked(1, self.trust)  # without the library that calibrates nothing begins
        if self.trust == "local":
            return nothing
        sums = {f"{RELEASE}.{key}": leaf for key, leaf in pick("ridge", nothing).items()}
        return sums | {f"{RELEASE}.number": torch.tensor(0)} | (nothing if self.keep_sums else {})

    def statistics(self, task: Task, data: ClientData, rng: torch.Generator) -> Tree:
        """Return A, b and the class counts of some samples; for real targets their sums."""
        if task.real:
            return to_tree(regress(task, task.params(), data))
        clip = None if self.privacy is None else self.privacy.clip
        statistics = collect(task, task.params(), data, self.multiplied_in, clip)
        return to_tree(statistics if self.privacy is None else self.privacy.limit(statistics))

    def client_step(
        self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator
    ) -> tuple[Update, Tree]:
        """Return the client's sums; with local privacy one release, which the client keeps and sends again if asked."""
        if self.privacy is None or self.trust == "central":
            return super().client_step(task, down, state, data, rng)
        if not state:
            own = from_tree(self.statistics(task, data, rng))
            noisy = self.privacy.release(own, rng if self.privacy.noise == "simulated" else None)
            state = nest(RELEASE, encode(noisy, self.wire, self.upload))
        return Update(self.decode(task, pick(RELEASE, state))), state

    def encode(self, sums: Tree) -> Tree:
        """Return the sums as `upload` says; of real targets the upper triangle and the rest."""
        if "ridge.counts" not in sums:
            return regression_from_tree(sums).pack()
        return super().encode(sums)

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Return full matrices in float64."""
        if task.real:
            return to_tree(RegressionStatistics.unpack(wire, task.outputs))
        return super().decode(task, wire)

    def check(self, task: Task, up: Update) -> str:
        """Return why no client can have these statistics; what a client noised or limited itself cannot be told."""
        if self.privacy is not None and (self.trust == "local" or self.privacy.client_norm is not None):
            return ""
        return implausible(regression_from_tree(up.sums), up.weight) if task.real else super().check(task, up)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Add the sums; with central privacy noised, by noise of its own for every round.

        A client is in one round only, so the rounds of a sweep are together as private as each of them.
        """
        if not self._central:
            return super().server_step(task, server, cohort)
        noisy = self._noised(task, from_tree(cohort.sums), task.round)
        sums = add(pick(RELEASE, server), noisy.leaves() | {"number": torch.tensor(0)})
        kept = add(pick("ridge", server), pick("ridge", cohort.sums)) if self.keep_sums else {}
        return nest(RELEASE, sums | {"number": sums["number"].clamp(min=1)}) | nest("ridge", kept)

    def _noised(self, task: Task, statistics: RidgeStatistics, where: int | str) -> RidgeStatistics:
        """Return a release of the server's."""
        assert self.privacy is not None
        return self.privacy.release(statistics, source(self.privacy.noise, task.seed, task.place, where))

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return one release of every sample, and another one for every time that somebody was forgotten."""
        if self.privacy is None:
            return None
        count = int(server.get(f"{RELEASE}.number", torch.tensor(1)).clamp(min=1))
        return (self.privacy.booked(count, self.trust, keeps=self.keep_sums),)

    def forget(self, task: Task, server: Tree, gone: Update) -> Tree:
        """Return the sums without some clients: what they would have been, had these never taken part.

        Under central privacy they are released anew, with noise of their own: the old release and the new one differ by
        more than the clients that left, and the account has one release more.
        """
        if task.real:
            return to_tree(regression_from_tree(server) - regression_from_tree(gone.sums))
        if self._central and not self.keep_sums:
            says = "Only the noised sums of this run were kept, and no client can be taken out of them exactly"
            raise HansaError(f"{says}: run again without it, or with keep_sums = true.")
        if not self._central:
            return super().forget(task, server, gone)
        left = from_tree(server) - from_tree(gone.sums)
        number = server[f"{RELEASE}.number"] + 1
        again = self._noised(task, left, f"forget {int(number)}")
        return to_tree(left) | to_tree(again, RELEASE) | {f"{RELEASE}.number": number}

    def _sums(self, task: Task, server: Tree) -> RidgeStatistics | RegressionStatistics:
        """Return the sums that weights are solved from: under central privacy those released."""
        if task.real:
            return regression_from_tree(server)
        return from_tree(server, RELEASE) if self._central else from_tree(server)

    def _lambda(self, task: Task, statistics: RidgeStatistics | RegressionStatistics) -> float:
        """Return λ, given or chosen; noise is added once a round, or by every client once."""
        if self.ridge != "adassp":
            return chosen_ridge(self.ridge, statistics, self._shifts(task))
        assert self.privacy is not None and isinstance(statistics, RidgeStatistics)
        return adassp(statistics, self.privacy, task.rounds if self._central else task.population)

    def _shifts(self, task: Task) -> bool:
        """Tell whether there is an intercept."""
        return task.real if self.intercept is None else self.intercept

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the classifier, or the regression, in place of the head."""
        statistics = self._sums(task, server)
        lam, intercept = self._lambda(task, statistics), self._shifts(task)
        if isinstance(statistics, RegressionStatistics):
            return with_head(task.params(), statistics.solve(lam, intercept=intercept))
        statistics = statistics if self.privacy is None else project_positive(statistics)
        weights = statistics.solve(lam, self.normalize, self.alpha, intercept=intercept)
        return with_head(task.params(), weights)

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show λ where it was chosen."""
        if not isinstance(self.ridge, str):
            return ()
        return ridge_exhibits(self._lambda(task, self._sums(task, server)), self.ridge)
