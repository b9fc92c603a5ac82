"""Any image or text encoder of Hugging Face `transformers`: a folder that `save_pretrained` wrote, or a hub id."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.features.images import check_images
from hansa.features.processor import Processor
from hansa.io.cache import digest, digest_files

POOLINGS = ("auto", "cls", "mean", "pooler")
PREPROCESSING = "1"
FILES = (
    "*.json",
    "*.txt",
    "*.model",
    "*.safetensors",
)  # what an encoder is made of; other formats of its weights are not read


@dataclass(frozen=True)
class Transformers:
    """The last hidden state of an encoder, pooled to one vector a sample.

    `auto` is the mean over tokens for text; for images the class token where there is one, else the encoder's own
    pooling.
    """

    path: str
    pooling: str = "auto"
    max_length: int = 256  # tokens of a text; the rest is cut off

    reads_text: ClassVar[bool] = True  # where it is a probe, token ids that stand for characters reach it as texts

    def __post_init__(self) -> None:
        known = self.pooling in POOLINGS
        require(known, f"The 'pooling' of Transformers must be one of {', '.join(POOLINGS)}. Got '{self.pooling}'.")
        require(self.max_length >= 1, f"The 'max_length' of Transformers must be at least 1. Got {self.max_length}.")

    @property
    def reads(self) -> frozenset[str]:
        """Images or text, as the files beside the weights tell; either where they are still on the hub."""
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            return frozenset({"images", "text"})
        return frozenset({"images" if (folder / "preprocessor_config.json").is_file() else "text"})

    def fingerprint(self) -> str:
        """Return a name made of settings, preprocessing and every file of the encoder."""
        folder = self._folder()
        files = [file for pattern in FILES for file in folder.glob(pattern)]
        return digest(PREPROCESSING, self.pooling, str(self.max_length), digest_files(files))

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the encoder and whatever turns raw samples into its inputs."""
        return self.network()[1]

    def network(self) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
        """Load the same; return the encoder itself too, for what looks at its weights."""
        library = _library()
        folder = self._folder()
        self._check_settings(folder)
        network = self._network(library, folder)
        if network.main_input_name == "pixel_values":
            return network, self._image_features(network, Processor.read(folder))
        return network, self._text_features(network, self._tokenizer(library, folder))

    def _check_settings(self, folder: Path) -> None:
        """Refuse settings that ask for code: a kernel of the hub is downloaded and run."""
        try:
            settings = list(_settings(json.loads((folder / "config.json").read_bytes())))
        except ValueError as error:
            raise HansaError(
                f"The config.json of the encoder '{self.path}' is damaged: {_first_line(error)}"
            ) from error
        code = [f"{key} = {value}" for key, value in settings if "implementation" in key and "/" in str(value)]
        require(not code, f"The encoder '{self.path}' asks for code, which is never run: {', '.join(code)}; remove it.")

    def _tokenizer(self, library: Any, folder: Path) -> Any:
        try:
            return library.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise HansaError(f"The tokenizer of '{self.path}' cannot be loaded: {_first_line(error)}") from error

    def _network(self, library: Any, folder: Path) -> Any:
        try:
            network, report = library.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise HansaError(f"The encoder '{self.path}' cannot be loaded: {_first_line(error)}") from error
        # Weights a file lacks are drawn at random; only a pooler that nobody asks for may be.
        missing = [
            name for name in report["missing_keys"] if self.pooling == "pooler" or not name.startswith("pooler.")
        ]
        require(not missing, f"The encoder '{self.path}' has no weights for {', '.join(sorted(missing)[:3])}.")
        plain = not network.config.is_encoder_decoder
        require(plain, f"'{self.path}' is an encoder with a decoder; save its encoder alone.")
        return network.eval()

    def _image_features(self, network: Any, processor: Processor) -> Callable[[Array], Tensor]:
        tokens = _has_class_token(network)

        def features(images: Array) -> Tensor:
            check_images(images, f"The encoder '{self.path}'")
            outputs = network(pixel_values=processor(images))
            pooling = self.pooling
            if pooling == "auto":
                pooling = "cls" if tokens else "mean" if _pooled(outputs) is None else "pooler"
            require(pooling != "cls" or tokens, f"The encoder '{self.path}' has no class token; use another 'pooling'.")
            return self._pool(pooling, outputs, None)

        return features

    def _text_features(self, network: Any, tokenizer: Any) -> Callable[[Array], Tensor]:
        longest = getattr(network.config, "max_position_embeddings", self.max_length)
        limit = min(self.max_length, tokenizer.model_max_length, longest)
        pooling = "mean" if self.pooling == "auto" else self.pooling

        def features(texts: Array) -> Tensor:
            text = texts.dtype.kind == "U" and texts.ndim == 1
            require(text, f"The encoder '{self.path}' reads texts, one string a sample. Got {texts.dtype} samples.")
            inputs = tokenizer(texts.tolist(), padding=True, truncation=True, max_length=limit, return_tensors="pt")
            return self._pool(pooling, network(**inputs), inputs["attention_mask"])

        return features

    def _pool(self, pooling: str, outputs: Any, mask: Tensor | None) -> Tensor:
        if pooling == "pooler":
            pooled = _pooled(outputs)
            if pooled is None:
                raise HansaError(f"The encoder '{self.path}' has no pooler; use another 'pooling'.")
            return pooled.flatten(1)
        states: Tensor = outputs.last_hidden_state
        if pooling == "cls":
            return states[:, 0]
        if states.ndim == 4:  # images × channels × height × width
            return states.mean((2, 3))
        return states.mean(1) if mask is None else _masked_mean(states, mask)

    def _folder(self) -> Path:
        """Return the folder of the encoder's files: the folder itself, or the hub's snapshot of it."""
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            require((folder / "config.json").is_file(), f"The folder '{self.path}' has no config.json of an encoder.")
            return folder
        _library()
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(self.path, allow_patterns=list(FILES)))
        except Exception as error:  # no such id, no network, no permission: the hub has many errors
            raise HansaError(
                f"There is no folder '{self.path}', and the Hugging Face hub gave no encoder of that name: "
                f"{_first_line(error)}"
            ) from error


def _settings(value: object) -> Iterator[tuple[str, object]]:
    """Yield every setting of a configuration, at whatever depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield str(key), one
        yield from _settings(one)


def _masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Average over the tokens that are not padding."""
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def _pooled(outputs: Any) -> Tensor | None:
    return getattr(outputs, "pooler_output", None)


def _has_class_token(network: Any) -> bool:
    return isinstance(getattr(getattr(network, "embeddings", None), "cls_token", None), torch.Tensor)


def _first_line(error: Exception) -> str:
    return f"{(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')}."


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise HansaError(
            "Transformers needs the package 'transformers'; install it with: "
            "pip install 'hansa[vision]' for images or 'hansa[text]' for text."
        ) from error
    return transformers
