"""FLIC: Rakotomamonjy et al., Personalised Federated Learning on Heterogeneous Feature Spaces (2023)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar

from hansa.algorithms.latent_space import latent_space
from hansa.algorithms.local import Local
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit
from hansa.payload import Role, Update
from hansa.seeds import generator
from hansa.task import ClientData, Task
from hansa.training.alignment import COUNTED, DRAWN, GROUP, MEAN, NOISE, ROOT, AnchorDistance, Anchored, Distance
from hansa.training.contrast import class_means
from hansa.training.distances import w2
from hansa.training.local import LocalTraining, Trained, Turn
from hansa.training.visits import Visit, changed
from hansa.training.wrappers import Wrapper, training_of
from hansa.tree import Tree, nest, pick, zeros_like

ADAM = LocalTraining(1e-3, epochs=10, batch_size=100, optimiser="adam")  # §6: Adam, M = 10, batches of 100
ALIGNED = "aligned"  # in a client's state: its features were pre-trained
Leaf = TypeVar("Leaf")
Aligning = Generator[Turn, Trained, tuple[Tree, float]]


@dataclass(frozen=True)
class Alignment:
    """How clients' features are aligned with anchors `μ_c = N(v_c, Σ_c)`, one for every class; settings of FLIC.

    `strength` is λ₁ and `calibration` λ₂ of eq. 3; `distance` is the closed form `w2`, or `w2-sampled` or `mmd` between
    samples and `draws` from each anchor; the term of λ₂ has as many.  Means start at `v_c ~ N(0, s²I)` with s =
    `spread`, and take one step of `lr` in every visit.  Covariances are I, or `learnt` as `Σ_c = L_c·L_cᵀ` with a
    Cholesky factor, which clients see shrunk towards the mean of all classes', `(1 − s)·L_c + s·mean_c L_c` with s =
    `shrinkage`.  A client pre-trains its features on the distance alone at its first visit, for `pretrain_epochs` in
    batches of `pretrain_batch`, and for `extra_epochs` at the end of every visit.  `meta_classes` has the meta-class of
    every class, by number, where several classes share an anchor (§S1.4).

    With `start = "means"` nothing is aligned in the first round: the clients of that round train as the wrapped
    algorithm does, and each anchor goes to the mean over those who hold its class of the mean of their features there,
    which is where the distance is smallest.  Not in the paper.

    Exhibits show where classes and anchors lie by principal components, with `neighbours` by t-SNE too.
    """

    strength: float = 1e-3
    calibration: float = 1e-3
    distance: Distance = "w2"
    draws: int = 10
    covariance: Literal["identity", "learnt"] = "identity"
    spread: float = 10.0
    lr: float = 1e-3
    pretrain_epochs: int = 100
    pretrain_batch: int = 100
    extra_epochs: int = 0
    meta_classes: tuple[int, ...] = ()
    shrinkage: float = 0.0
    start: Literal["random", "means"] = "random"
    neighbours: bool = False

    def __post_init__(self) -> None:
        for name in ("strength", "calibration", "spread", "pretrain_epochs", "extra_epochs"):
            value = getattr(self, name)
            require(value >= 0, f"The '{name}' of FLIC's anchors must be a number ≥ 0. Got {value}.")
        require(self.draws >= 1, f"The 'draws' of FLIC's anchors must be a number ≥ 1. Got {self.draws}.")
        require(self.lr > 0, f"The 'lr' of FLIC's anchors must be a number > 0. Got {self.lr}.")
        require(self.pretrain_batch >= 1, f"The 'pretrain_batch' of FLIC must be ≥ 1. Got {self.pretrain_batch}.")
        require(0 <= self.shrinkage <= 1, f"The 'shrinkage' of FLIC must lie between 0 and 1. Got {self.shrinkage}.")
        alone = not self.shrinkage or self.covariance == "learnt"
        require(alone, "The 'shrinkage' of FLIC is that of learnt covariances: set covariance = \"learnt\".")
        used = sorted(set(self.meta_classes))
        good = used == list(range(len(used)))
        require(good, f"The 'meta_classes' of FLIC must be numbers from 0 on without a gap. Got {used}.")

    def server_init(self, task: Task) -> Tree:
        """Return the anchors: of every class or meta-class, or for real targets the ends a and b of `y·a + (1−y)·b`."""
        width, rng = _width(task), generator(task.seed, "anchors")
        if task.real:
            require(self.covariance == "identity", "FLIC's anchors of real targets have covariance 'identity'.")
            require(not self.meta_classes, "FLIC has 'meta_classes' where there are classes, and these are numbers.")
            require(self.start == "random", "FLIC's anchors start from 'means' of classes, and these are numbers.")
            return {"ends": self.spread * torch.randn(2 * task.outputs, width, generator=rng)}
        count, given = task.outputs, len(self.meta_classes)
        fits = given in (0, count)
        require(fits, f"The 'meta_classes' of FLIC must have a number for each of {count} classes. Got {given}.")
        count = 1 + max(self.meta_classes) if self.meta_classes else count
        means = self.spread * torch.randn(count, width, generator=rng)
        found = {f"{place}.mean": mean for place, mean in enumerate(means)}
        roots = {f"{place}.root": torch.eye(width) for place in range(count)} if self.covariance == "learnt" else {}
        return {key: leaf.to(task.number_format).clone() for key, leaf in (found | roots).items()}

    def stacked(self, anchors: Tree) -> Tree:
        """Return the anchors of a message as the objectives know them."""
        if "ends" in anchors:
            return {MEAN: anchors["ends"]}
        parts = {MEAN: "mean"} | ({ROOT: "root"} if self.covariance == "learnt" else {})
        count = sum(key.endswith(".mean") for key in anchors)
        found = {name: torch.stack([anchors[f"{i}.{part}"] for i in range(count)]) for name, part in parts.items()}
        if self.shrinkage:
            found[ROOT] = torch.lerp(found[ROOT], found[ROOT].mean(0, keepdim=True), self.shrinkage)
        return found

    def to_means(self, z: Tensor, y: Tensor, anchors: Tree) -> Tree:
        """Return the way from each anchor to the mean of the features that belong to it; nothing for the others."""
        means, counts = class_means(z, self._anchor_of(y), len(anchors[MEAN]))
        moved = torch.where(counts[:, None] > 0, means - anchors[MEAN], 0.0)
        return zeros_like(anchors) | {MEAN: moved.to(anchors[MEAN].dtype)}

    def centres(self, anchors: Tree) -> Tensor:
        """Return the mean of every class's anchor, C × k."""
        means = self.stacked(anchors)[MEAN]
        return means[self._anchor_of(torch.arange(len(self.meta_classes) or len(means)))]

    def unaligned(self, round: int) -> str:
        """Return in words what clients have after a round in which nothing was aligned yet; empty after others."""
        if self.start == "means":
            return "Before alignment: after the round in which clients train without it." if round == 0 else ""
        return "Before alignment: what clients start from, neither pre-trained nor trained." if round < 0 else ""

    def apart(self, moved: Tree, task: Task, data: ClientData) -> Tree:
        """Return by anchor how far each moved, of those whose classes a client holds."""
        if task.real:
            return {"ends": moved[MEAN]}
        held, names = torch.unique(self._anchor_of(data.y)).tolist(), {MEAN: "mean", ROOT: "root"}
        return {f"{place}.{names[key]}": leaf[place] for key, leaf in moved.items() for place in held}

    def _anchor_of(self, y: Tensor) -> Tensor:
        return torch.tensor(self.meta_classes)[y] if self.meta_classes else y

    def given(self, task: Task, data: ClientData, mean: Tensor, rng: torch.Generator) -> Tree:
        """Return what else the objectives need: noise, and whose draws it makes.

        Those of an anchor carry the labels of the client's own samples there, and count as a mean; an anchor of which
        the client has no samples counts nothing.  Draws of real targets are for some of the client's own.
        """
        if task.real:
            labels = data.y[torch.randint(len(data), (self.draws,), generator=rng)]
            counted = torch.full((self.draws,), 1 / self.draws)
        else:
            places = [self._places(data.y, anchor, rng) for anchor in range(len(mean))]
            labels = torch.cat([labels for labels, _ in places])
            counted = torch.cat([torch.full((self.draws,), held / self.draws) for _, held in places])
        noise = torch.randn(len(labels), mean.shape[1], generator=rng)
        found = {NOISE: noise.to(mean.dtype), DRAWN: labels, COUNTED: counted.to(mean.dtype)}
        return found | ({GROUP: torch.tensor(self.meta_classes)} if self.meta_classes else {})

    def _places(self, y: Tensor, anchor: int, rng: torch.Generator) -> tuple[Tensor, bool]:
        """Return labels for the draws of an anchor, and whether the client has samples there."""
        own = y[self._anchor_of(y) == anchor]
        first = self.meta_classes.index(anchor) if self.meta_classes else anchor
        if not len(own):
            return torch.full((self.draws,), first), False
        return own[torch.randint(len(own), (self.draws,), generator=rng)], True


def _width(task: Task) -> int:
    """Count the numbers of the latent space: what the head sees of a sample."""
    x = torch.zeros(1, *task.input_shape, dtype=torch.long if task.integers else torch.get_default_dtype())
    return int(task.features(task.params(), x).shape[1])


@dataclass(frozen=True)
class Flic(Wrapper):
    """Wraps an algorithm that trains locally: all clients' features are aligned with anchors they share (Algorithm 1).

    Every turn of the wrapped visit minimises F_i of eq. 3 in place of its own loss: `f_i + λ₁·Σ_c W2²(μ_c, ν_c) +
    λ₂·Σ_c mean_j ℓ(c, g(Z_c^j))`, where the features are φ_i and the head is g; ν_c is what a batch has of a class,
    and draws Z are made once for a visit.  Then the client takes one step on its copy of μ,
    against the shared weights that it received, and the server averages means and factors, which is one step towards
    the Wasserstein barycentre: each anchor over the clients that hold its class, so that one nobody in a round holds
    stays where it is.  Around `local` this is FLIC-Class, around `hetfedrep` FLIC-HL; the paper's Table 2 has FedAvg-FT
    (`personal` with `keep = "features"` around `fedavg-ft`) and L2GD (with `keep = "features"`) too.  Features that
    the client does not keep to itself are aligned, and not pre-trained.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = Local(ADAM)
    anchors: Alignment = Alignment()

    def __post_init__(self) -> None:
        name, trains = type(self.inner).__name__, training_of(self.inner) is not None
        require(trains and not self.inner.one_shot, f"FLIC wraps algorithms that train locally. Got {name}.")
        odd = sorted(group for group, role in self.inner.uplink.items() if role is Role.EACH)
        require(not odd, f"FLIC cannot wrap an algorithm whose server needs every client's own {odd}: wrap FLIC in it.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The wrapped algorithm's own, and the anchors."""
        return {**self.inner.uplink, "anchors": Role.STEP}

    @property
    def partial(self) -> bool:
        """A client sends the anchors of the classes that it holds."""
        return True

    @property
    def _training(self) -> LocalTraining:
        training = training_of(self.inner)
        assert training is not None
        return training

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state, and the anchors."""
        return self.inner.server_init(task) | nest("anchors", self.anchors.server_init(task))

    def broadcast(self, task: Task, server: Tree, rng: torch.Generator) -> Tree:
        """Return the wrapped algorithm's message, and the anchors."""
        return self.inner.broadcast(task, _but_anchors(server), rng) | nest("anchors", pick("anchors", server))

    def visit(self, task: Task, down: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Visit:
        """Pre-train the features, carry out the wrapped visit towards F_i, and step on the anchors."""
        anchors = self.anchors.stacked(pick("anchors", down))
        given = self.anchors.given(task, data, anchors[MEAN], generator(rng.initial_seed(), "anchors"))
        new, state = ALIGNED not in state, {key: leaf for key, leaf in state.items() if key != ALIGNED}
        keeps = all(f"own.{key}" in state for key in task.params() if key.startswith("features."))
        if self.anchors.start == "means" and task.round == 0:
            return (yield from self._begin(task, down, state, data, anchors, rng))
        flops, extra = 0.0, self.anchors.extra_epochs
        if keeps and new and self.anchors.pretrain_epochs:
            state, flops = yield from self._align(task, state, anchors | given, self.anchors.pretrain_epochs)
        visit = self.inner.visit(task, _but_anchors(down), state, data, rng)
        up, state = yield from changed(visit, lambda turn: self._anchored(turn, anchors | given))
        if keeps and extra:
            state, more = yield from self._align(task, state, anchors | given, extra)
            flops += more
        moved = zeros_like(anchors)
        if self.anchors.strength or self.anchors.calibration:
            step = yield self._step(task, down, state, anchors, given)
            moved, flops = {key: step.params[key] - leaf for key, leaf in anchors.items()}, flops + step.flops
        apart = {key: leaf * up.weight for key, leaf in self.anchors.apart(moved, task, data).items()}
        up = replace(up, sums=up.sums | nest("anchors", apart), flops=up.flops + flops)
        return up, state | ({ALIGNED: torch.ones(())} if keeps else {})

    def _begin(
        self, task: Task, down: Tree, state: Tree, data: ClientData, anchors: Tree, rng: torch.Generator
    ) -> Visit:
        """Carry out the wrapped visit as it is, and send the anchors to the means of the client's classes."""
        up, state = yield from self.inner.visit(task, _but_anchors(down), state, data, rng)
        own = {key: leaf[...] for key, leaf in pick("own", state).items()}  # makes leaves that many trained together
        z = task.features(task.params() | pick("model", down) | own, data.x).detach()
        apart = self.anchors.apart(self.anchors.to_means(z, data.y, anchors), task, data)
        sums = nest("anchors", {key: leaf * up.weight for key, leaf in apart.items()})
        return replace(up, sums=up.sums | sums), state

    def _align(self, task: Task, state: Tree, given: Tree, epochs: int) -> Aligning:
        """Train the client's own features on the distance alone."""
        batch, objective = self.anchors.pretrain_batch, AnchorDistance(self.anchors.distance)
        training = replace(self._training, train="features", epochs=epochs, steps=None, batch_size=batch)
        start = task.params() | pick("own", state)
        trained = yield Turn(training, task, start, objective=objective, given=given)
        own = {key: leaf for key, leaf in trained.params.items() if key.startswith("features.")}
        return state | nest("own", own), trained.flops

    def _objective(self, turn: Turn) -> Anchored:
        """Return F_i, without the distance where a turn moves neither of what it is between."""
        plain, ends = turn.objective or turn.training.objective, ("features.", "anchors.")
        moves = any(turn.training.trains(key) for key in turn.start if key.startswith(ends))
        return Anchored(self.anchors.strength * moves, self.anchors.calibration, self.anchors.distance, plain)

    def _anchored(self, turn: Turn, given: Tree) -> Turn:
        """Return a turn of the wrapped algorithm, towards F_i."""
        return replace(turn, objective=self._objective(turn), given=turn.given | given)

    def _step(self, task: Task, down: Tree, state: Tree, anchors: Tree, given: Tree) -> Turn:
        """Return the step on the anchors: one batch, from the shared weights that came and the client's new ones."""
        step = replace(self._training, lr=self.anchors.lr, epochs=1, steps=1, weight_decay=0.0, train="anchors.*")
        turn = Turn(step, task, task.params() | pick("model", down) | pick("own", state) | anchors)
        return self._anchored(turn, given)

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped step, and move each anchor by the mean step of those who hold its class."""
        rest = replace(cohort, sums=_but_anchors(cohort.sums), without=_but_anchors(cohort.without))
        moved = pick("anchors", cohort.mean())
        anchors = {key: leaf + moved[key] if key in moved else leaf for key, leaf in pick("anchors", server).items()}
        return self.inner.server_step(task, _but_anchors(server), rest) | nest("anchors", anchors)

    def model(self, task: Task, server: Tree) -> Tree:
        """Return the wrapped algorithm's model."""
        return self.inner.model(task, _but_anchors(server))

    def serve(self, task: Task, server: Tree) -> Tree:
        """Serve as the wrapped algorithm does: a model needs no anchors."""
        return self.inner.serve(task, _but_anchors(server))

    def observe(self, task: Task, model: Tree, data: ClientData) -> Tree:
        """Return also where a client's classes lie in the latent space, and how far their covariances are from I.

        Those that it lacks are zeros; the distance is there where all anchors have the covariance I.
        """
        if task.real:
            return self.inner.observe(task, model, data)
        z = task.features(model, data.x).detach()
        means, counts = class_means(z, data.y, task.num_classes)
        found = {"latent.mean": means, "latent.held": counts > 0}
        if self.anchors.covariance == "identity":
            shapes = [w2(z[data.y == c], mean) if counts[c] else torch.zeros(()) for c, mean in enumerate(means)]
            found["latent.bures"] = torch.stack([shape.to(z.dtype) for shape in shapes])
        return {**self.inner.observe(task, model, data), **found}

    def observes_start(self, task: Task) -> bool:
        """Tell that clients do, as pre-training aligns them already; anchors from means have none to show there."""
        return (not task.real and self.anchors.start == "random") or self.inner.observes_start(task)

    def exhibits(self, task: Task, server: Tree, observed: Mapping[str, Tree]) -> tuple[Exhibit, ...]:
        """Show also how far clients' classes are from their anchors, and where both lie."""
        shown = self.inner.exhibits(task, _but_anchors(server), observed)
        if task.real or not observed:
            return shown
        centres, when = self.anchors.centres(pick("anchors", server)), self.anchors.unaligned(task.round)
        return (*shown, *latent_space(centres, observed, when, neighbours=self.anchors.neighbours))

    def deploy(self, task: Task, served: Tree, state: Tree, data: ClientData, rng: torch.Generator) -> Tree:
        """Deploy as the wrapped algorithm does."""
        return self.inner.deploy(task, served, {key: leaf for key, leaf in state.items() if key != ALIGNED}, data, rng)


def _but_anchors(tree: Mapping[str, Leaf]) -> dict[str, Leaf]:
    return {key: leaf for key, leaf in tree.items() if not key.startswith("anchors.")}
