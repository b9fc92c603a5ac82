"""Encoders of Hugging Face `transformers`, from a folder that `save_pretrained` wrote."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.io.cache import digest_files
from hansa.lazy import Tensor, nn, torch
from hansa.models import networks
from hansa.models.backbone import Norm, apart, check_recomputed, recomputed, shared_copy, with_norm
from hansa.models.processor import Processor
from hansa.models.split import image_shape

Pooling = Literal["auto", "cls", "mean", "pooler"]
FILES = (
    "*.json",
    "*.txt",
    "*.model",
    "*.safetensors",
)  # what an encoder is made of; other formats of its weights are not read


@dataclass(frozen=True)
class TransformersModel:
    """An encoder in a folder (ViT, ConvNeXt, ResNet, MobileNetV2, BERT, MiniLM …), all of it trainable, and a head.

    Pictures are resized and normalised inside the network as the folder's `preprocessor_config.json` asks for, to
    `size` pixels square where that is given.  Texts become `max_length` token numbers by the folder's tokenizer before
    they are divided among clients; the rest of a longer text is cut off.  `pooling` makes one vector a sample of the
    last hidden state: `auto` is the mean over tokens for text, the class token of an image encoder that has one, else
    its own pooling.
    """

    path: str
    pooling: Pooling = "auto"
    size: int | None = None
    max_length: int = 64
    norm: Norm = "frozen"
    recompute: bool = False

    normalises: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.size is None or self.size >= 1, f"The 'size' of TransformersModel must be ≥ 1. Got {self.size}.")
        says = "The 'max_length' of TransformersModel must be at least 1"
        require(self.max_length >= 1, f"{says}. Got {self.max_length}.")
        check_recomputed("TransformersModel", self.recompute, self.norm)

    def fingerprint(self) -> str:
        """Return a name of every file of the encoder."""
        return digest_files(files_of(self._folder()))

    def tokens(self, texts: Array) -> Array:
        """Return texts as token numbers (n × length), cut off or filled up."""
        tokenizer, network = load_tokenizer(self._folder(), self.path), self._network()
        limit = longest(self.max_length, network, tokenizer)
        good = tokenizer.pad_token_id == self._padding(network)
        require(good, f"The tokenizer of '{self.path}' fills up texts by another token than its encoder knows.")
        found = tokenizer(texts.tolist(), padding="max_length", truncation=True, max_length=limit)["input_ids"]
        return np.array(found, dtype=np.int64)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build it for pictures, or for texts as token numbers."""
        network = self._network()
        if self.pooling != "pooler" and any(True for _ in _parameters(getattr(network, "pooler", None))):
            network.pooler = None  # leaves that nothing would read
        with_norm(network, self.norm)
        if self.recompute:
            recomputed(network)
        features = self._images(network, input_shape) if reads_images(network) else self._texts(network, input_shape)
        with torch.no_grad(), apart():
            kind = torch.float32 if reads_images(network) else torch.long
            width = features.eval()(torch.ones((1, *input_shape), dtype=kind)).shape[1]
        return networks.Split(features, nn.Linear(width, outputs)).train()

    def _images(self, network: Any, input_shape: tuple[int, ...]) -> nn.Module:
        image_shape(self, input_shape, smallest=1, channels=(1, 3))
        prepared = Processor.read(self._folder())
        prepared.check_tensors(f"The encoder '{self.path}'")
        if self.size is not None:
            prepared = replace(prepared, shortest=None, exact=(self.size, self.size), crop=None)

        def through(network: Any, x: Tensor) -> Tensor:
            return image_vectors(network, prepared.tensors(x), self.pooling, self.path)

        return networks.Backbone(network, through)

    def _texts(self, network: Any, input_shape: tuple[int, ...]) -> nn.Module:
        padding, says = self._padding(network), f"The encoder '{self.path}' reads texts as token numbers"
        require(len(input_shape) == 1, f"{says}. Got samples of shape {input_shape}; choose another model.")

        def through(network: Any, x: Tensor) -> Tensor:
            mask = (x != padding).long()
            return text_vectors(network, {"input_ids": x, "attention_mask": mask}, self.pooling, self.path)

        return networks.Backbone(network, through)

    def _padding(self, network: Any) -> int:
        found: int | None = network.config.pad_token_id
        if found is None:
            raise HansaError(f"The config.json of the encoder '{self.path}' names no token that fills up short texts.")
        return found

    def _network(self) -> Any:
        return shared_copy(_loaded(self._folder(), self.path, self.pooling == "pooler"))

    def _folder(self) -> Path:
        folder = Path(self.path).expanduser()
        there = (folder / "config.json").is_file()
        says = f"There is no folder '{self.path}' with the config.json of an encoder"
        require(there, f"{says}: give one that 'save_pretrained' wrote.")
        return folder


# --------------------------------------------------------------------------------------------------------- the library


@functools.lru_cache(maxsize=4)
def _loaded(folder: Path, told: str, pooler: bool) -> Any:
    """Load an encoder once for a process."""
    with apart():  # a head is drawn alike whether or not the encoder was there before
        return load_encoder(folder, told, pooler=pooler)


def load_encoder(folder: Path, told: str, *, pooler: bool) -> Any:
    """Load an encoder with all the weights that are asked for; `told` is its name in errors."""
    library = transformers_library()
    _check_settings(folder, told)
    try:
        with _no_bar(library):
            network, report = library.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, KeyError) as error:
        raise HansaError(f"The encoder '{told}' cannot be loaded: {first_line(error)}") from error
    # Weights a file lacks are drawn at random; only a pooler that nobody asks for may be.
    missing = [name for name in report["missing_keys"] if pooler or not name.startswith("pooler.")]
    require(not missing, f"The encoder '{told}' has no weights for {', '.join(sorted(missing)[:3])}.")
    plain = not network.config.is_encoder_decoder
    require(plain, f"'{told}' is an encoder with a decoder; save its encoder alone.")
    return network.eval()


@contextlib.contextmanager
def _no_bar(library: Any) -> Iterator[None]:
    """Keep the library from drawing bars of its own between the lines of a run."""
    shown = library.utils.logging.is_progress_bar_enabled()
    library.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library.utils.logging.enable_progress_bar()


def load_tokenizer(folder: Path, told: str) -> Any:
    """Load what turns texts into token numbers."""
    library = transformers_library()
    try:
        return library.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise HansaError(f"The tokenizer of '{told}' cannot be loaded: {first_line(error)}") from error


def files_of(folder: Path) -> list[Path]:
    """Return every file that an encoder is made of."""
    return [file for pattern in FILES for file in folder.glob(pattern)]


def longest(asked: int, network: Any, tokenizer: Any) -> int:
    """Return the tokens of the longest text that is not cut off."""
    return int(min(asked, tokenizer.model_max_length, getattr(network.config, "max_position_embeddings", asked)))


def _check_settings(folder: Path, told: str) -> None:
    """Refuse settings that ask for code: a kernel of the hub is downloaded and run."""
    try:
        settings = list(_settings(json.loads((folder / "config.json").read_bytes())))
    except ValueError as error:
        raise HansaError(f"The config.json of the encoder '{told}' is damaged: {first_line(error)}") from error
    code = [f"{key} = {value}" for key, value in settings if "implementation" in key and "/" in str(value)]
    require(not code, f"The encoder '{told}' asks for code, which is never run: {', '.join(code)}; remove it.")


def _settings(value: object) -> Iterator[tuple[str, object]]:
    """Yield every setting of a configuration, at whatever depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield str(key), one
        yield from _settings(one)


def first_line(error: Exception) -> str:
    """Return the beginning of what a library says."""
    return f"{(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')}."


def transformers_library() -> Any:
    """Return the library, or tell how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise HansaError(
            "Transformers needs the package 'transformers'; install it with: "
            "pip install 'hansa[vision]' for images or 'hansa[text]' for text."
        ) from error
    return transformers


# ------------------------------------------------------------------------------------------------ one vector a sample


def reads_images(network: Any) -> bool:
    """Tell whether an encoder reads images, and not text."""
    return bool(network.main_input_name == "pixel_values")


def image_vectors(network: Any, pixels: Tensor, pooling: str, told: str) -> Tensor:
    """Return the vectors of prepared images."""
    outputs, tokens = network(pixel_values=pixels), _has_class_token(network)
    if pooling == "auto":
        pooling = "cls" if tokens else "mean" if _pooled(outputs) is None else "pooler"
    require(pooling != "cls" or tokens, f"The encoder '{told}' has no class token; use another 'pooling'.")
    return _pool(pooling, outputs, None, told)


def text_vectors(network: Any, inputs: Any, pooling: str, told: str) -> Tensor:
    """Return the vectors of texts, from what a tokenizer made of them."""
    return _pool("mean" if pooling == "auto" else pooling, network(**inputs), inputs["attention_mask"], told)


def _pool(pooling: str, outputs: Any, mask: Tensor | None, told: str) -> Tensor:
    if pooling == "pooler":
        pooled = _pooled(outputs)
        if pooled is None:
            raise HansaError(f"The encoder '{told}' has no pooler; use another 'pooling'.")
        return pooled.flatten(1)
    states: Tensor = outputs.last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    if states.ndim == 4:  # images × channels × height × width
        return states.mean((2, 3))
    return states.mean(1) if mask is None else _masked_mean(states, mask)


def _masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Average over the tokens that are not padding."""
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def _pooled(outputs: Any) -> Tensor | None:
    return getattr(outputs, "pooler_output", None)


def _has_class_token(network: Any) -> bool:
    return isinstance(getattr(getattr(network, "embeddings", None), "cls_token", None), torch.Tensor)


def _parameters(module: nn.Module | None) -> Iterator[nn.Parameter]:
    return iter(()) if module is None else module.parameters()
