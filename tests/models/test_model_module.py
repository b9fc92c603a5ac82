"""Networks of the user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hansa.errors import HansaError
from hansa.models.module import Module
from hansa.task import Task


def test_split_is_the_same_network() -> None:
    task = Task(Module("own_networks:Plain", options={"width": 6}), (4,), 5, seed=1)
    assert set(task.params()) == {"features.body.weight", "features.body.bias", "head.weight", "head.bias"}
    assert task.params()["head.weight"].shape == (5, 6)  # the factory was told the number of classes
    x = torch.rand(3, 4)
    params = task.params()
    hidden = torch.relu(x @ params["features.body.weight"].T + params["features.body.bias"])
    torch.testing.assert_close(task.features(params, x), hidden)
    torch.testing.assert_close(task.forward(params, x), hidden @ params["head.weight"].T + params["head.bias"])


def test_nested_head_and_tokens() -> None:
    module = Module("own_networks:nested", head="2.1").build((3,), 3)
    assert module.training
    assert set(module.state_dict()) == {"features.0.weight", "head.weight", "head.bias"}
    assert module(torch.ones(2, 3, dtype=torch.long)).shape == (2, 3)


def test_equal_settings_share_a_skeleton() -> None:
    first, second = (Module("own_networks:Plain", options={"width": 6}) for _ in range(2))
    other = Module("own_networks:Plain", options={"width": 7})
    assert first == second and hash(first) == hash(second) and first != other
    assert Task(first, (4,), 3).module is Task(second, (4,), 3).module
    assert Task(other, (4,), 3).module is not Task(second, (4,), 3).module


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"path": "own_networks"}, "import path"),
        ({"path": "own_networks:Plan"}, "cannot be imported"),
        ({"path": "no_such_package:Plain"}, "no_such_package"),
        ({"path": "own_networks:number"}, "Got a int"),
        ({"path": "own_networks:broken", "options": {"width": 2}}, "out of order"),
        ({"path": "own_networks:Plain", "options": {"wdth": 2}}, "wdth"),
        ({"path": "own_networks:Plain", "head": "classifier"}, "body, fc"),
        ({"path": "own_networks:Plain", "head": ""}, "no layer ''"),
        ({"path": "own_networks:Plain", "head": "body"}, "not its last one"),
        ({"path": "own_networks:Scaled"}, "not its last one"),
        ({"path": "own_networks:Plain", "options": {"num_classes": 4}}, "must give 3 outputs"),
    ],
)
def test_what_goes_wrong_is_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(HansaError) as caught:
        Module(**settings).build((4,), 3)
    assert words in str(caught.value)


def test_unreadable_samples() -> None:
    with pytest.raises(HansaError, match=r"cannot read samples of shape \(7,\)"):
        Module("own_networks:Plain").build((7,), 3)
