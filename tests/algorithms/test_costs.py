"""The papers' cost tables, figure by figure, and that real messages hold as many numbers as the formulas say."""

from __future__ import annotations

import pytest
import torch
from hand_problems import sent
from paper_costs import Sizes, communication, computation, fed3r_full_upload

from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.personal import Personal
from hansa.algorithms.scaffold import Scaffold
from hansa.contract import Algorithm
from hansa.data.clients import whole_client
from hansa.data.dataset import Samples
from hansa.engines.client_side import ClientSide
from hansa.engines.session import perform
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining

MB, GB, TB = 1e6, 1e9, 1e12
CLIENTS = 1262  # of Landmarks-Users-160K
CLASSES = 2028


def landmarks(dimension: int, backbone: float = 26.6 * MB / 4, head: float | None = 12.0 * MB / 4) -> Sizes:
    """Table E.1: what the models weigh, as the paper measured them."""
    return Sizes(backbone, dimension, CLASSES, head=head)


MOBILENET = landmarks(1280)

# Table 1: downstream and upstream for a client, and upstream for a round of ten.
TABLE_1 = {
    "fedavg": (12.00, 12.00, 120.00),
    "scaffold": (24.00, 24.00, 240.00),
    "fed3r-full": (0.00, 16.95, 169.45),
    "fedncm": (0.00, 10.38, 103.83),
}


@pytest.mark.parametrize(("method", "printed"), TABLE_1.items(), ids=TABLE_1)
def test_table_1_of_the_workshop_paper(method: str, printed: tuple[float, float, float]) -> None:
    down, up = (4 * numbers / MB for numbers in communication(method, MOBILENET, "head"))
    assert (round(down, 2), round(up, 2), round(10 * up, 2)) == pytest.approx(printed, abs=0.0051)


@pytest.mark.parametrize(("dimension", "printed"), [(5000, 140.57), (10000, 481.13)])
def test_table_1_random_features(dimension: int, printed: float) -> None:
    assert round(4 * fed3r_full_upload(landmarks(dimension)) / MB, 2) == pytest.approx(printed, abs=0.0051)


# Table F.1: dimension, extractor in MB, prior costs, then Round/k and total costs of Fed3R.
TABLE_F1 = [
    (1280, 26.60, 33.57 * GB, 16.95, 21.39),
    (1024, 1220.0, 1.54 * TB, 12.51, 15.79),
    (1536, 901.44, 1.14 * TB, 21.91, 27.65),
    (1536, 919.20, 1.16 * TB, 21.91, 27.65),
    (5000, 26.60, 33.57 * GB, 140.57, 177.40),
    (10000, 26.60, 33.57 * GB, 481.13, 607.19),
]


@pytest.mark.parametrize("row", TABLE_F1, ids=str)
def test_table_f1_of_the_workshop_paper(row: tuple[float, ...]) -> None:
    dimension, extractor, prior, upload, total = row
    up = 4 * fed3r_full_upload(landmarks(int(dimension), extractor * MB / 4))
    assert round(up / MB, 2) == pytest.approx(upload, abs=0.0051)
    assert CLIENTS * up / GB == pytest.approx(total, rel=0.0005)
    assert CLIENTS * extractor * MB == pytest.approx(prior, rel=0.005)


def test_table_e1_adds_up() -> None:
    for classifier, extractor, model in ((12.0, 26.6, 38.6), (14.4, 901.44, 915.84), (14.4, 904.8, 919.2)):
        assert landmarks(1, extractor, classifier).part("all") == pytest.approx(model)


def test_table_g1_of_the_workshop_paper() -> None:
    """Fine-tuning sends the model down, and the model and the statistics up."""
    down, up = communication("fedavg", MOBILENET)
    assert (round(4 * down / MB, 2), round(4 * (up + fed3r_full_upload(MOBILENET)) / MB, 2)) == (38.6, 55.55)
    assert round(4 * (2 * up + fed3r_full_upload(MOBILENET)) / MB, 2) == 94.15


WIDTH, HIDDEN, HOLDS = 7, 5, 3
TASK = Task(MLP((HIDDEN,)), (WIDTH,), 6)
DATA = ClientData(torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(0)), torch.arange(20) % HOLDS)
SIZES = Sizes(WIDTH * HIDDEN + HIDDEN, HIDDEN, 6, HOLDS, head=HIDDEN * 6 + 6)


def train(part: str) -> LocalTraining:
    return LocalTraining(train=part)


# Table 22: formula and the algorithm whose messages must hold as many numbers.
TABLE_22: list[tuple[str, str, Algorithm]] = [
    ("fedavg", "all", FedAvg()),
    ("fedavg", "features", FedAvg(train("features"))),
    ("fedavg", "head", FedAvg(train("head"))),
    ("scaffold", "all", Scaffold()),
    ("scaffold", "features", Scaffold(local=train("features"))),
    ("scaffold", "head", Scaffold(local=train("head"))),
    ("fedsim", "head", Personal(FedAvg(), keep="head")),
    ("fedsim", "features", Personal(FedAvg(), keep="features")),
]


def real_numbers(algorithm: Algorithm) -> tuple[int, int]:
    down = sent(algorithm, TASK, algorithm.server_init(TASK))
    client = whole_client(Samples(DATA.x.numpy(), DATA.y.numpy()), None)
    side = ClientSide(algorithm, TASK, {"a": client}, lambda _: None, seed=0, place=0)
    reply = perform(side, TASK, "a", 0, down)
    return sum(leaf.numel() for leaf in down.values()), sum(leaf.numel() for leaf in reply.upload.values())


@pytest.mark.parametrize(("method", "part", "algorithm"), TABLE_22, ids=lambda value: str(value)[:24])
def test_table_22_counts_what_really_travels(method: str, part: str, algorithm: Algorithm) -> None:
    assert real_numbers(algorithm) == communication(method, SIZES, part)  # type: ignore[arg-type]


def test_table_22_closed_forms() -> None:
    """Beside these numbers an upload names its classes and counts their samples; FedNCM sends no empty ones."""
    assert real_numbers(Fed3R()) == (0, communication("fed3r", SIZES)[1] + 2 * HOLDS)
    assert real_numbers(Fed3R(upload="full")) == (0, communication("fed3r-full", SIZES)[1])
    assert real_numbers(FedNCM())[1] == HIDDEN * HOLDS + 2 * HOLDS < communication("fedncm", SIZES)[1]


def test_table_23() -> None:
    """F_φ, F_ψ = 100, 10, d = 5, C̄ = 3, five epochs."""
    features, head = 100.0, 10.0
    assert computation("fed3r", features, head, SIZES) == 100 + 15 + 15
    assert computation("fedncm", features, head, SIZES) == 100
    assert computation("fedavg", features, head, SIZES, epochs=5) == 3 * 5 * 110
    assert computation("fedavg", features, head, SIZES, "features") == 3 * 110
    assert computation("scaffold", features, head, SIZES, "head") == 3 * (100 + 3 * 10)
    assert computation("pfedme", features, head, SIZES, "head") == 6 * (100 + 3 * 10)
    assert computation("pfedme", features, head, SIZES, "features") == 6 * 110


def test_the_ledger_counts_table_23_where_the_whole_model_trains() -> None:
    up, _ = FedAvg().client_step(TASK, {}, {}, DATA, torch.Generator())
    assert up.flops == len(DATA) * computation("fedavg", TASK.features_flops, TASK.head_flops, SIZES)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(HansaError, match=r"no cost formula for 'fedavgg'\. Did you mean 'fedavg'"):
        communication("fedavgg", SIZES)
