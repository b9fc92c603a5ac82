"""Model files from elsewhere: whatever their card says, they predict or are refused with a sentence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hansa
from hansa.deploy.model import load_model
from hansa.errors import HansaError
from hansa.models.dense import MLP
from hansa.task import Task
from hansa.task_table import expected_shapes

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    hansa.run("digits-fed3r", out=folder / "run", changes=["data.partition={name='iid', clients=3}"])
    return load_model(folder / "run").save(folder / "model.safetensors")


def changed(saved: Path, change: Change) -> Path:
    """The model file with another card."""
    content = saved.read_bytes()
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    card = json.loads(header["__metadata__"]["hansa"])
    change(card)
    header["__metadata__"]["hansa"] = json.dumps(card)
    text = json.dumps(header).encode()
    file = saved.with_name("changed.safetensors")
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return file


def put(value: object, *path: Any) -> Change:
    def change(card: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            card = card[key]
        card[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (put([-1], "task", "input_shape"), r"whole numbers ≥ 1. Got \(-1,\) and 10"),
        (put([0], "task", "input_shape"), "whole numbers ≥ 1"),
        (put([], "task", "input_shape"), "whole numbers ≥ 1"),
        (put([2**31], "task", "input_shape"), "are not those of the model it names"),
        (put([2**60], "task", "input_shape"), "task' should be a finite number"),
        (put([2**50, 2**50], "task", "input_shape"), "An 'input_shape' of 1125899906842624×1125899906842624 cannot be"),
        (put("64", "task", "input_shape"), "task.input_shape' should be"),
        (put(2**31, "task", "outputs"), "2147483648 outputs, which are not its target's 10"),
        (put(True, "task", "real"), "which are not its target's"),
        (put(0.0, "task", "temperature"), "'temperature' of a task must be a number > 0"),
        (put(float("nan"), "task", "temperature"), "task' should be a finite number"),
        (put(1, "task", "more"), "There is no setting '.*task.more'"),
        (lambda card: card["task"].pop("model"), "task.model' is missing"),
        (lambda card: card["task"].pop("outputs"), "task.outputs' is missing"),
        (put(3, "task"), "task"),
        (lambda card: card.pop("target"), "target' is missing"),
        (lambda card: card.pop("algorithm"), "algorithm' is missing"),
        (put(1, "more"), "There is no setting"),
        (put({"kind": "classes"}, "target"), "A target needs a 'kind'"),
        (put({"kind": "colours", "names": ["a"]}, "target"), "A target needs a 'kind'"),
        (put({"kind": "classes", "names": ["a"] * 10}, "target"), "Two classes are called 'a'"),
        (put([], "labels"), "must be class numbers below 10"),
        (put([10], "labels"), "must be class numbers below 10"),
        (put(-3, "size"), "The 'size' of images must be at least 1"),
        (put({}, "leaves"), "are not those of the model it names"),
        (put({"name": "mlp", "hidden": [2**40]}, "task", "model"), r"are not those of the model|cannot be built"),
    ],
)
def test_a_card_that_cannot_be_true_is_refused(saved: Path, change: Change, says: str) -> None:
    with pytest.raises(HansaError, match=says):
        load_model(changed(saved, change))


def test_the_card_as_it_was_is_still_read(saved: Path) -> None:
    read = load_model(changed(saved, lambda card: None))
    assert read.probabilities(np.zeros((2, 64), np.float32)).shape == (2, 10)


def test_a_file_that_lacks_weights_of_its_network_is_refused(saved: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(saved, framework="pt") as stored:
        told = dict(stored.metadata())
    card = json.loads(told["hansa"])
    weights = load_file(saved)
    for key in [key for key in weights if key.startswith("head.")]:
        del weights[key], card["leaves"][key]
    lacking = saved.with_name("lacking.safetensors")
    save_file(weights, lacking, {"hansa": json.dumps(card)})
    with pytest.raises(HansaError, match="are not those of the model it names"):
        load_model(lacking)


def test_large_networks_are_known_without_memory() -> None:
    small, large = (expected_shapes(Task(MLP((width,)), (64,), 10)) for width in (8, 2**40))
    assert small == {key: leaf.shape for key, leaf in Task(MLP((8,)), (64,), 10).params().items()}
    assert small.keys() == large.keys() and (2**40, 64) in large.values()
    assert torch.empty(1).device.type == "cpu"
