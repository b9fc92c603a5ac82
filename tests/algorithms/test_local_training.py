"""The one training loop, against torch's own optimisers and losses, and its directions by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from hand_problems import ONE, TASK, TwoLogits, mixed, rng, run_rounds, samples, slope, trained, visit, weight
from torch import Tensor, nn

from hansa.algorithms.ditto import Ditto
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.scaffold import Scaffold
from hansa.data.federation import federation_from_clients
from hansa.engines.serial import Serial
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP
from hansa.orchestrate.star import Star
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.task import ClientData, Task
from hansa.training.directions import PLAIN, MetaGradient, VarianceReduced, reference
from hansa.training.leaves import but, personal_leaves, select
from hansa.training.local import Correction, LocalTraining, Turn, train
from hansa.training.objectives import AbsoluteError, CrossEntropy, Objective, SquaredError
from hansa.training.schedules import Constant, Cosine, Exponential, Schedule, Steps
from hansa.training.visits import measured, turn_seed
from hansa.tree import Tree, equal, norm, pick, subtract
from journals import ListJournal

SMALL = Task(MLP((5,)), (3,), 2)
DATA = mixed(shift=0.3)["c3"]
WHOLE = LocalTraining(lr=0.05, batch_size=100, epochs=7)
Loss = Callable[[Tensor, Tensor], Tensor]


def torch_training(
    task: Task,
    data: ClientData,
    optimiser: Callable[[list[Tensor]], torch.optim.Optimizer],
    loss: Loss = F.cross_entropy,
    *,
    steps: int = 7,
    clip: float | None = None,
) -> Tree:
    """Full batches, by torch's own means."""
    params = {key: leaf.clone().requires_grad_() for key, leaf in task.params().items()}
    stepper = optimiser(list(params.values()))
    for _ in range(steps):
        stepper.zero_grad()
        loss(task.forward(params, data.x, training=True), data.y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(list(params.values()), clip)
        stepper.step()
    return {key: leaf.detach() for key, leaf in params.items()}


def close(left: Tree, right: Tree, atol: float = 1e-6) -> bool:
    return left.keys() == right.keys() and all(
        torch.allclose(leaf, right[key], atol=atol) for key, leaf in left.items()
    )


# -------------------------------------------------------------------------------------------------------- optimisers

OPTIMISERS: Mapping[str, tuple[LocalTraining, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (WHOLE, lambda p: torch.optim.SGD(p, 0.05)),
    "decay": (replace(WHOLE, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.2)),
    "momentum": (
        replace(WHOLE, momentum=0.9, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.2),
    ),
    "adam": (replace(WHOLE, optimiser="adam"), lambda p: torch.optim.Adam(p, 0.05)),
    "adam-decay": (
        replace(WHOLE, optimiser="adam", weight_decay=0.2, betas=(0.8, 0.9), epsilon=1e-3),
        lambda p: torch.optim.Adam(p, 0.05, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2),
    ),
    "adamw": (
        replace(WHOLE, optimiser="adamw", weight_decay=0.2),
        lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.2),
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_torchs(name: str) -> None:
    local, optimiser = OPTIMISERS[name]
    found = trained(local, SMALL, DATA)
    assert found.steps == 7 and close(found.params, torch_training(SMALL, DATA, optimiser))


def test_no_two_of_these_optimisers_agree() -> None:
    ends = [trained(local, SMALL, DATA).params for local, _ in OPTIMISERS.values()]
    pairs = [(left, right) for place, left in enumerate(ends) for right in ends[:place]]
    assert all(not close(left, right, 1e-4) for left, right in pairs)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_an_optimiser_that_is_remembered_goes_on_where_it_stopped(name: str) -> None:
    local, optimiser = OPTIMISERS[name]
    first = train(Turn(replace(local, epochs=3), SMALL, SMALL.params(), remembers=True), DATA, 0)
    second = train(Turn(replace(local, epochs=4), SMALL, first.params, memory=first.memory), DATA, 0)
    assert close(second.params, torch_training(SMALL, DATA, optimiser)) and not second.memory
    anew = train(Turn(replace(local, epochs=4), SMALL, first.params), DATA, 0)
    assert not close(anew.params, second.params, 1e-4)


@pytest.mark.parametrize("clip", [0.05, 0.3, 100.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_clipping_is_torchs(clip: float, momentum: float) -> None:
    found = trained(replace(WHOLE, clip=clip, momentum=momentum), SMALL, DATA).params
    expected = torch_training(SMALL, DATA, lambda p: torch.optim.SGD(p, 0.05, momentum=momentum), clip=clip)
    assert close(found, expected)


def test_adams_weight_decay_is_part_of_the_gradient_that_is_clipped() -> None:
    """Where nothing is clipped the step adds it on the way, to the same end."""
    decays = replace(WHOLE, optimiser="adam", weight_decay=0.2, epsilon=1.0)
    ends = [trained(replace(decays, clip=clip), SMALL, DATA).params for clip in (None, 1e9, 1e-9)]
    assert close(ends[0], ends[1]) and not close(ends[0], SMALL.params(), 1e-3)
    assert close(ends[2], SMALL.params(), 1e-8)


def test_a_clipped_step_is_as_long_as_the_bound_allows() -> None:
    local = LocalTraining(lr=1.0, batch_size=100, clip=0.05)
    assert norm(subtract(trained(local, SMALL, DATA).params, SMALL.params())) == pytest.approx(0.05, rel=1e-4)


def test_steps_may_be_counted_in_place_of_epochs() -> None:
    """Twenty samples in batches of eight are three steps an epoch, so seven steps see 2·20 + 8 samples."""
    local = LocalTraining(batch_size=8, steps=7, epochs=99)
    found = trained(local, SMALL, DATA)
    assert len(DATA) == 20 and found.steps == 7
    assert found.flops == 48 * local.flops(SMALL)
    two = trained(LocalTraining(batch_size=8, epochs=2), SMALL, DATA)
    assert equal(trained(LocalTraining(batch_size=8, steps=6), SMALL, DATA).params, two.params)


# -------------------------------------------------------------------------------------------------------- objectives


@pytest.mark.parametrize(
    ("objective", "loss"),
    [
        (CrossEntropy(label_smoothing=0.3), lambda z, y: F.cross_entropy(z, y, label_smoothing=0.3)),
        (
            CrossEntropy(class_weights=(0.2, 3.0)),
            lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([0.2, 3.0])),
        ),
    ],
    ids=["label-smoothing", "class-weights"],
)
def test_options_of_cross_entropy_are_torchs(objective: Objective, loss: Loss) -> None:
    found = trained(replace(WHOLE, objective=objective), SMALL, DATA).params
    assert close(found, torch_training(SMALL, DATA, lambda p: torch.optim.SGD(p, 0.05), loss))
    assert not close(found, trained(WHOLE, SMALL, DATA).params, 1e-4)


def test_smoothing_and_class_weights_together_weigh_a_samples_whole_loss() -> None:
    """`Σ w_y·((1−ε)·CE + ε·mean CE) / Σ w_y`: a sample counts by its own class, also in its smoothed part."""
    weights = torch.tensor([0.2, 3.0])

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(logits, y, reduction="none", label_smoothing=0.3)
        return (each * weights[y]).sum() / weights[y].sum()

    objective = CrossEntropy(label_smoothing=0.3, class_weights=(0.2, 3.0))
    found = trained(replace(WHOLE, objective=objective), SMALL, DATA).params
    assert close(found, torch_training(SMALL, DATA, lambda p: torch.optim.SGD(p, 0.05), loss))


def test_balanced_class_weights_by_hand() -> None:
    """Three classes, of which the client has two with 6 and 2 samples: 8/(2·6) and 8/(2·2)."""
    task = Task(MLP((4,)), (1,), 3)
    found = CrossEntropy(class_weights="balanced").given(task, samples(1.0, 6, 2))["class_weights"]
    assert found[:2].tolist() == pytest.approx([8 / 12, 8 / 4])
    with pytest.raises(HansaError, match="2 class weights for 3 classes"):
        CrossEntropy(class_weights=(1.0, 2.0)).given(task, samples(1.0, 6, 2))


def test_smoothing_under_oll_spreads_over_the_clients_own_classes() -> None:
    data = ClientData(DATA.x, DATA.y * 2)  # classes 0 and 2 of three
    view = Task(MLP((5,)), (3,), 3, local_labels=True).view(data, {})
    given = view.params()
    loss = CrossEntropy(label_smoothing=0.3).loss(view, given, {}, data.x, data.y, None)
    columns = view.forward(given, data.x)[:, [0, 2]]
    assert float(loss) == pytest.approx(float(F.cross_entropy(columns, data.y // 2, label_smoothing=0.3)), rel=1e-5)


@dataclass(frozen=True)
class OneNumber:
    """f(x) = w·x, a real number, from w = 0.5."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Identity())
        net.add_module("head", nn.Linear(1, outputs, bias=False))
        nn.init.constant_(net.head.weight, 0.5)
        return net


REAL = Task(OneNumber(), (1,), 1, real=True)
POINTS = ClientData(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [-1.0]]))


@pytest.mark.parametrize(
    ("objective", "gradient"),
    [
        (None, (2 * (0.5 - 3) * 1 + 2 * (1.0 + 1) * 2) / 2),  # real targets: the squared error
        (SquaredError(), (2 * (0.5 - 3) * 1 + 2 * (1.0 + 1) * 2) / 2),
        (AbsoluteError(), (-1 * 1 + 1 * 2) / 2),
    ],
    ids=["usual", "squared", "absolute"],
)
def test_errors_of_real_targets_by_hand(objective: Objective | None, gradient: float) -> None:
    found = trained(LocalTraining(lr=0.1, objective=objective), REAL, POINTS)
    assert found.params["head.weight"].item() == pytest.approx(0.5 - 0.1 * gradient)


def test_errors_of_several_targets_are_their_mean() -> None:
    task = Task(OneNumber(), (1,), 2, real=True)
    data = ClientData(torch.tensor([[1.0]]), torch.tensor([[3.0, -1.0]]))
    found = trained(LocalTraining(lr=0.1), task, data).params["head.weight"].flatten().tolist()
    assert found == pytest.approx([0.5 - 0.1 * (0.5 - 3), 0.5 - 0.1 * (0.5 + 1)])  # 2·error/2 targets


def test_fedavg_learns_real_targets() -> None:
    draw = rng(1)
    x = torch.randn(4, 10, 1, generator=draw)
    clients = {f"c{k}": ClientData(x[k], 1.7 * x[k]) for k in range(4)}
    server, _ = run_rounds(FedAvg(LocalTraining(lr=0.1, epochs=3)), REAL, clients, [list(clients)] * 40)
    assert server["model.head.weight"].item() == pytest.approx(1.7, abs=1e-3)


# --------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), [1, 1, 1, 1, 1]),
        (Exponential(0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (Steps(2, 0.1), [1, 1, 0.1, 0.1, 0.01]),
        (Cosine(), [(1 + math.cos(math.pi * k / 5)) / 2 for k in range(5)]),
        (Cosine(0.2), [0.2 + 0.8 * (1 + math.cos(math.pi * k / 5)) / 2 for k in range(5)]),
    ],
    ids=repr,
)
def test_schedules_by_hand(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule.factor(number, 5) for number in range(5)] == pytest.approx(factors)
    local = LocalTraining(lr=0.3, schedule=schedule)
    for number, factor in enumerate(factors):
        task = replace(TASK, round=number, rounds=5)
        assert weight(trained(local, task, ONE).params) == pytest.approx(-0.3 * factor * slope(0.0), rel=1e-5)


@pytest.mark.parametrize("make", [lambda: Exponential(0.0), lambda: Steps(0), lambda: Steps(1, 2.0), lambda: Cosine(2)])
def test_schedules_that_make_no_sense_are_refused(make: Callable[[], Schedule]) -> None:
    with pytest.raises(HansaError, match="schedule"):
        make()


def test_scaffold_reads_gradients_off_steps_at_the_rate_of_the_round() -> None:
    task = replace(TASK, round=1, rounds=2)
    algorithm = Scaffold(LocalTraining(lr=0.4, schedule=Exponential(0.25)))
    _, state = visit(algorithm, task, algorithm.server_init(task), ONE)
    assert weight(state, "control.") == pytest.approx(slope(0.0), rel=1e-5)


def test_l2gds_averaging_follows_the_schedule_like_its_steps() -> None:
    """At a quarter of the rate ω is 0.2/4, or λ would be another than asked for."""
    task = replace(TASK, round=1, rounds=2)
    local = LocalTraining(lr=0.1, schedule=Exponential(0.25))
    algorithm = L2GD(local, strength=2.0, probability=0.5)
    down = {"model.head.weight": torch.zeros(2, 1), "steps": torch.tensor([2, 1])}
    _, state = algorithm.client_step(task, down, {"own.head.weight": torch.tensor([[0.2], [-0.2]])}, ONE, rng())
    x = 0.2 * (1 - 0.2 / 4) ** 2
    assert weight(state, "own.") == pytest.approx(x - 0.025 * slope(x), rel=1e-5)


# -------------------------------------------------------------------------------------------------------- directions


def parabolas(*each: tuple[float, float]) -> Callable[..., Tree]:
    """The gradients `a·w − b` of one parabola for every order of batches."""
    return lambda weights, order=0: {"w": each[order][0] * weights["w"] - each[order][1]}


W = {"w": torch.tensor(2.0, dtype=torch.float64)}


def test_plain_gradients_by_hand() -> None:
    assert PLAIN.of(parabolas((3.0, 1.0)), W, {})["w"].item() == 3 * 2 - 1 and PLAIN.slopes == PLAIN.orders == 1


def test_variance_reduction_by_hand() -> None:
    """`∇f(2) − ∇f(0.5)` of the same batch: the constant part of the gradient cancels."""
    direction, point = VarianceReduced(), reference({"w": torch.tensor(0.5, dtype=torch.float64)})
    assert direction.of(parabolas((3.0, 1.0)), W, point)["w"].item() == pytest.approx(3 * (2 - 0.5))
    assert (direction.slopes, direction.orders) == (2, 1)


def test_a_variance_reduced_turn_by_hand() -> None:
    """Two steps on batches that differ, shifted by the full gradient: the second batch is not the first one's."""
    data, start = samples(2.0, 3, 1), {"head.weight": torch.tensor([[0.4], [-0.4]])}
    shift = {"head.weight": torch.tensor([[0.3], [-0.3]])}
    local = LocalTraining(lr=0.1, batch_size=4, epochs=2)
    turn = Turn(local, TASK, start, Correction(shift=shift), VarianceReduced(), given=reference(TASK.params()))
    w = 0.4

    def mean(at: float) -> float:
        return (3 * slope(at, 0) + slope(at, 1)) / 4

    for _ in range(2):
        w -= 0.1 * (mean(w) - mean(0.0) + 0.3)
    assert weight(train(turn, data, 0).params) == pytest.approx(w, rel=1e-5)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_meta_gradients_by_hand(order: str) -> None:
    """D: 3w − 1 = 5, so w̃ = 2 − 0.1·5 = 1.5; D′: 2·1.5 − 4 = −1; D″ has the curvature 5, so hf is −1·(1 − 0.1·5)."""
    direction = MetaGradient(0.1, order, 0.01)  # type: ignore[arg-type]
    found = direction.of(parabolas((3.0, 1.0), (2.0, 4.0), (5.0, 7.0)), W, {})["w"].item()
    assert found == pytest.approx(-1.0 if order == "fo" else -0.5)
    assert (direction.slopes, direction.orders) == ((2, 3) if order == "fo" else (4, 3))


def test_a_measured_turn_gives_the_mean_gradient_and_moves_nothing() -> None:
    """Batches of two of five samples: the last one counts half as much, and every sample the same."""
    data, turn = samples(2.0, 3, 2), Turn(LocalTraining(batch_size=2, epochs=3, momentum=0.9), TASK, TASK.params())
    found = train(measured(turn), data, 0)
    assert weight(found.slope) == pytest.approx((3 * slope(0.0, 0) + 2 * slope(0.0, 1)) / 5, rel=1e-5)
    assert equal(found.params, TASK.params()) and found.steps == 0
    assert found.flops == len(data) * LocalTraining().flops(TASK)


def test_a_second_turn_draws_from_a_seed_of_its_own() -> None:
    """Ditto's own model trains in the second turn; its batches are not those of the first."""
    local, task, data = LocalTraining(lr=0.1, batch_size=4), SMALL, DATA
    algorithm = Ditto(local, strength=0.0)
    up, state = visit(algorithm, task, algorithm.server_init(task), data, seed=3)
    first, second = (trained(local, task, data, seed=turn_seed(3, number)).params for number in (0, 1))
    assert turn_seed(3, 0) == 3 and equal(pick("own", state), second) and not close(first, second, 1e-5)
    step = {key: leaf / len(data) for key, leaf in pick("model", up.sums).items()}
    assert close(step, subtract(first, task.params()))


# ------------------------------------------------------------------------------------------------ leaves and networks

NAMES = ("features.0.weight", "features.0.bias", "features.3.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ("all", NAMES),
        ("head", NAMES[3:]),
        ("features.3.*", NAMES[2:3]),
        (("features.0.*", "head.bias"), (*NAMES[:2], NAMES[4])),
        ("!head", NAMES[:3]),
        (("features", "!features.0.*"), NAMES[2:3]),
        (("!features", "features.3.*"), NAMES[2:]),
        (("features", "!features.0.*", "features.0.bias"), NAMES[1:3]),
        (("!*.bias", "!head"), (NAMES[0], NAMES[2])),
        ("neck", ()),
    ],
    ids=str,
)
def test_patterns_choose_leaves_one_after_the_other(patterns: str | tuple[str, ...], chosen: tuple[str, ...]) -> None:
    assert select(NAMES, patterns) == chosen
    assert select(NAMES, but(patterns)) == tuple(name for name in NAMES if name not in chosen)


def test_what_a_pattern_takes_out_does_not_train() -> None:
    local = LocalTraining(train=("all", "!features.*", "features.1.bias"))
    found, start = trained(local, SMALL, DATA).params, SMALL.params()
    assert {key for key, leaf in found.items() if not torch.equal(leaf, start[key])} == {
        "features.1.bias",
        "head.weight",
        "head.bias",
    }
    assert set(local.moving(start)) == {"features.1.bias", "head.weight", "head.bias"}


def test_patterns_of_what_a_client_keeps() -> None:
    assert personal_leaves(SMALL, ("all", "!head.bias")) == set(SMALL.params()) - {"head.bias"}
    with pytest.raises(HansaError, match=r"keep = \['head', '!head'\]"):
        personal_leaves(SMALL, ("head", "!head"))


@dataclass(frozen=True)
class Dropped:
    """A network with a layer that draws."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        net.add_module("features", nn.Sequential(nn.Linear(*input_shape, 8), nn.ReLU(), nn.Dropout(0.5)))
        net.add_module("head", nn.Linear(8, outputs))
        return net


def test_dropout_draws_from_the_seed_and_from_nothing_else() -> None:
    task, local = Task(Dropped(), (3,), 2), LocalTraining(batch_size=100, epochs=3)
    torch.manual_seed(1)
    first, state = trained(local, task, DATA, seed=4).params, torch.get_rng_state()
    torch.manual_seed(2)
    assert equal(trained(local, task, DATA, seed=4).params, first)
    assert not close(trained(local, task, DATA, seed=5).params, first, 1e-4)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # and leaves torch's own generator alone


def test_two_runs_with_dropout_are_equal() -> None:
    task, clients = Task(Dropped(), (3,), 2, population=4, samples=47), mixed()
    ends = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        algorithm = Scaffold(LocalTraining(batch_size=4), option="I")
        ends.append(run_rounds(algorithm, task, clients, [list(clients)] * 2)[0])
    assert equal(*ends)


@dataclass(frozen=True)
class Double:
    """A network of float64 numbers."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        return MLP((5,)).build(input_shape, outputs).double()


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_float64_network_trains(optimiser: str) -> None:
    """On float32 inputs, which it reads as float64; to ten digits as torch does."""
    task = Task(Double(), (3,), 2)
    found = trained(replace(WHOLE, optimiser=optimiser), task, DATA)  # type: ignore[arg-type]
    kind = torch.optim.SGD if optimiser == "sgd" else torch.optim.Adam
    expected = torch_training(task, DATA, lambda p: kind(p, 0.05))
    assert all(leaf.dtype == torch.float64 for leaf in found.params.values())
    assert close(found.params, expected, 1e-10) and found.flops > 0


@pytest.mark.parametrize("objective", [CrossEntropy(0.1, "balanced"), CrossEntropy()], ids=repr)
def test_rounds_of_a_float64_network_stay_float64(objective: Objective) -> None:
    task = Task(Double(), (3,), 2, population=4, samples=47)
    algorithm = Scaffold(LocalTraining(batch_size=4, objective=objective))
    server, states = run_rounds(algorithm, task, mixed(), [["c0", "c1"], ["c1", "c3"]])
    assert all(leaf.dtype == torch.float64 for tree in (server, *states.values()) for leaf in tree.values())


@pytest.mark.parametrize("path", ["auto", "stacked"])
def test_engines_agree_on_a_float64_network(path: str) -> None:
    clients = {name: (data.x.numpy(), data.y.numpy()) for name, data in mixed().items()}
    phase = Phase("only", Scaffold(LocalTraining(batch_size=4)), Star(fraction=1.0), rounds=2)
    ends = []
    for engine in (Serial(), Vectorised(path=path)):  # type: ignore[arg-type]
        task = Task(Double(), (3,), 2, population=4)
        done = run_phases(
            Experiment(task, federation_from_clients(clients), (phase,), engine), MemoryStore(), ListJournal()
        )
        assert done is not None
        ends.append(done.server)
    assert close(ends[0], ends[1], 1e-10) and all(leaf.dtype == torch.float64 for leaf in ends[1].values())


@dataclass(frozen=True)
class BySort:
    """An encoder for vectors and another for images, of which some leaves share names, below a common head."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = nn.Sequential()
        if len(input_shape) == 1:
            encoder = nn.Sequential(nn.Linear(*input_shape, 4), nn.ReLU(), nn.Linear(4, 4))
        else:
            encoder = nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        net.add_module("features", encoder)
        net.add_module("head", nn.Linear(4, outputs))
        return net


def test_a_view_takes_over_the_common_leaves_that_fit_its_encoder() -> None:
    vectors = Task(BySort(), (3,), 2)
    learnt = {key: leaf + 1 for key, leaf in vectors.params().items()}
    task = replace(vectors, start=learnt)
    images = ClientData(torch.randn(6, 1, 5, 5, generator=rng()), torch.arange(6) % 2)
    view = task.view(images, {})
    assert view.input_shape == (1, 5, 5) and set(view.start) == {"features.0.bias", "head.weight", "head.bias"}
    assert view.params().keys() == {"features.0.weight", *view.start}
    assert view.params()["features.0.weight"].shape == (4, 1, 3, 3)
    assert view.forward(view.params(), images.x).shape == (6, 2)
    found = trained(LocalTraining(), view, images).params
    assert not torch.equal(found["features.0.weight"], view.params()["features.0.weight"])
    own = {"features.0.weight": torch.ones(4, 1, 3, 3)}
    assert torch.equal(task.view(images, own).params()["features.0.weight"], own["features.0.weight"])
    assert task.view(mixed()["c0"], {}) is task


def test_an_anchor_that_follows_ends_where_it_says() -> None:
    """Two batches: after each the anchor goes half of the way to the weight."""
    pull = Correction(2.0, {"head.weight": torch.zeros(2, 1)}, follow=0.5)
    turn = Turn(LocalTraining(lr=0.1, epochs=2), Task(TwoLogits(), (1,), 2), TASK.params(), pull)
    found = train(turn, ONE, 0)
    w = anchor = 0.0
    for _ in range(2):
        w -= 0.1 * (slope(w) + 2.0 * (w - anchor))
        anchor += 0.5 * (w - anchor)
    assert weight(found.params) == pytest.approx(w, rel=1e-5)
    assert weight(found.anchor) == pytest.approx(anchor, rel=1e-5)
    assert not turn.correction.anchor["head.weight"].any()
