"""Any image or text encoder of Hugging Face `transformers`: a folder that `save_pretrained` wrote, or a hub id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hansa.data.dataset import Array
from hansa.errors import HansaError, require
from hansa.io.cache import digest, digest_files
from hansa.lazy import Tensor, torch
from hansa.models.backbone import device_of
from hansa.models.images import check_images
from hansa.models.processor import Processor
from hansa.models.transformers import (
    FILES,
    files_of,
    first_line,
    image_vectors,
    load_encoder,
    load_tokenizer,
    longest,
    reads_images,
    text_vectors,
    transformers_library,
)

POOLINGS = ("auto", "cls", "mean", "pooler")
PREPROCESSING = "1"


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
        return digest(PREPROCESSING, self.pooling, str(self.max_length), digest_files(files_of(self._folder())))

    def prepare(self) -> Callable[[Array], Tensor]:
        """Load the encoder and whatever turns raw samples into its inputs."""
        return self.network()[1]

    def network(self) -> tuple[torch.nn.Module, Callable[[Array], Tensor]]:
        """Load the same; return the encoder itself too, for what looks at its weights."""
        folder = self._folder()
        network = load_encoder(folder, self.path, pooler=self.pooling == "pooler")
        if reads_images(network):
            return network, self._image_features(network, Processor.read(folder))
        return network, self._text_features(network, load_tokenizer(folder, self.path))

    def _image_features(self, network: Any, processor: Processor) -> Callable[[Array], Tensor]:
        def features(images: Array) -> Tensor:
            check_images(images, f"The encoder '{self.path}'")
            return image_vectors(network, processor(images, device_of(network)), self.pooling, self.path)

        return features

    def _text_features(self, network: Any, tokenizer: Any) -> Callable[[Array], Tensor]:
        limit = longest(self.max_length, network, tokenizer)

        def features(texts: Array) -> Tensor:
            text = texts.dtype.kind == "U" and texts.ndim == 1
            require(text, f"The encoder '{self.path}' reads texts, one string a sample. Got {texts.dtype} samples.")
            inputs = tokenizer(texts.tolist(), padding=True, truncation=True, max_length=limit, return_tensors="pt")
            return text_vectors(network, inputs.to(device_of(network)), self.pooling, self.path)

        return features

    def _folder(self) -> Path:
        """Return the folder of the encoder's files: the folder itself, or the hub's snapshot of it."""
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            require((folder / "config.json").is_file(), f"The folder '{self.path}' has no config.json of an encoder.")
            return folder
        transformers_library()
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(self.path, allow_patterns=list(FILES)))
        except Exception as error:  # no such id, no network, no permission: the hub has many errors
            raise HansaError(
                f"There is no folder '{self.path}', and the Hugging Face hub gave no encoder of that name: "
                f"{first_line(error)}"
            ) from error
