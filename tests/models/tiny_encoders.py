"""Encoders of `transformers` in their smallest form, with random weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bread", "soup", "pie", "pump", "gear", "drill", "we", "sell"]
PREPROCESSOR = {"do_resize": True, "size": {"height": 32, "width": 32}, "do_normalize": True}
PREPROCESSOR |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "do_rescale": True}


def saved(folder: Path, kind: str) -> str:
    """Save an encoder of a kind to a folder."""
    library = pytest.importorskip("transformers")
    small: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    texts = {"vocab_size": len(WORDS), "max_position_embeddings": 8, "initializer_range": 0.5}
    configs = {
        "resnet": lambda: library.ResNetConfig(
            embedding_size=6, hidden_sizes=[6, 8], depths=[1, 1], layer_type="basic"
        ),
        "vit": lambda: library.ViTConfig(**small, image_size=32, patch_size=8),
        "convnext": lambda: library.ConvNextConfig(hidden_sizes=[4, 6, 8, 8], depths=[1, 1, 1, 1], image_size=32),
        "mobilenet": lambda: library.MobileNetV2Config(depth_multiplier=0.1, image_size=32),
        "bert": lambda: library.BertConfig(**small, **texts),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = library.AutoModel.from_config(configs[kind]())
        if kind == "resnet":  # statistics as after training: not those of a fresh layer
            for key, leaf in network.named_buffers():
                if leaf.is_floating_point():
                    leaf.copy_(torch.rand_like(leaf) + (0.5 if key.endswith("var") else 0.0))
    network.save_pretrained(folder)
    if kind == "bert":
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    else:
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return str(folder)
