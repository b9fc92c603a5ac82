"""The settings of a piece in words: their defaults, and a sentence on each.

The sentence is the comment beside the field, else the one of the class's docstring that names the field, else that of
the piece or table which the field holds, else that of the word, which means the same wherever nothing else is said.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from hansa.io.codec import field_types, piece_kind
from hansa.io.registry import name_of

# Words of settings; `Class.word` is the word's meaning in one class, whatever else is said there.
WORDS: Mapping[str, str] = {
    "activation": "the function between layers, a name of torch.nn.functional",
    "anchors": "the distributions of features that all clients align with",
    "average": "whether every class counts once, or by its samples",
    "batch_size": "samples in a training step",
    "bias": "whether the head has a bias",
    "bins": "intervals of confidence",
    "bottleneck": "units of the adapter's narrow layer",
    "client": "the column that names clients",
    "clients": "clients that the samples are divided among",
    "clients_per_domain": "clients that share the samples of a domain",
    "delimiter": "the sign between columns",
    "device": "where tensors are: cpu, cuda, …",
    "distance": "the measure of how far features lie apart",
    "domain": "the column that names domains",
    "doubt": "standard errors by which a model must be better than the start before it is deployed",
    "embedding": "numbers that stand for a character",
    "epochs": "passes over a client's samples in a visit",
    "epsilon": "the ε of differential privacy: less is more private",
    "estimator": "what describes a client after training",
    "experiment": "the experiment that runs belong to",
    "filters": "channels of every convolution",
    "folder": "where the tracker writes",
    "fraction": "the share of superclients that a round visits",
    "global_term": "whether features are also contrasted with the prototypes of all clients together",
    "grouping": "how clients are put together into superclients",
    "held_out": "the share of clients whose statistics choose",
    "hidden": "widths of the hidden layers",
    "images": "whether samples are images instead of vectors",
    "kernel": "pixels across a convolution",
    "kind": "the distribution of the noise",
    "label": "the column that holds labels",
    "layers": "recurrent layers, one above the other",
    "layout": "what the levels of folders stand for",
    "lr": "the learning rate η",
    "max_categories": "the most values of a column that become inputs of their own",
    "max_clients": "the most clients of a superclient",
    "mean": "the mean of the draws",
    "min_samples": "the fewest samples of a client",
    "mode": "whether the tracker sends what it writes",
    "momentum": "the share β of the last step that the next one keeps",
    "mu": "the strength μ of the proximal term",
    "noise": "whether noise comes from the operating system, or is simulated by the seed",
    "normalize": "what divides the classifier's columns",
    "optimiser": "how gradients become steps",
    "options": "arguments of the partitioner",
    "order": "first-order steps, or the Hessian's product by differences",
    "partitioner": "the class of flwr-datasets",
    "path": "where it is: a file, a folder, an import path or a hub's name, as the piece reads it",
    "personal_epochs": "epochs of the client's own model; as many as those of `local` where none are given",
    "pool": "how tokens become one vector",
    "pooling": "how hidden states become one vector",
    "probability": "how often the common coin asks for communication",
    "products": "the numbers that features are multiplied in",
    "project": "the project that runs belong to",
    "recompute": "whether maps are computed again for the gradient instead of kept, for memory",
    "ridge": "the regularisation λ",
    "scale": "whether columns are standardised",
    "seed": "what the random map is drawn from",
    "shards_per_client": "shards that a client gets",
    "shared_from": "the round in which the shared layer begins to train",
    "sigma": "the spread σ of the logarithm: 0 makes all alike",
    "strength": "the pull λ towards what is common",
    "superclients": "how many superclients the clients are grouped into",
    "tau": "the constant τ that keeps steps bounded",
    "test_fraction": "the share of samples that is set aside for testing",
    "threads": "threads of the processor",
    "trust": "who adds the noise: a trusted server, or every client",
    "upload": "the form in which statistics travel",
    "value": "the number",
    "variant": "which EfficientNet-Lite: 0, 1 or 2",
    "weights": "whether clients count by their samples or alike",
    "width": "what multiplies all numbers of channels",
    "window": "rounds whose models are averaged",
    "wire": "the numbers that travel",
    "LocalTraining.betas": "the shares β₁ and β₂ that Adam keeps of its two means",
    "LocalTraining.epsilon": "the constant that keeps Adam's steps bounded",
    "Text.window": "characters before the one that is predicted",
    "Dirichlet.alpha": "the concentration α: small ones give clients few classes",
    "DomainLabel.alpha": "the concentration α: small ones give clients few classes",
    "FedDyn.alpha": "the strength α of the dynamic regulariser",
    "PerFedAvg.alpha": "the rate α of the step that personalises",
    "PerFedAvg.delta": "the distance δ of the points that a Hessian's product is taken from",
    "Private.delta": "the δ of differential privacy: the chance that ε does not hold",
    "ChannelShift.delta": "the factor δ of a colour channel",
    "TrimmedMean.beta": "the share β that is cut off on either side",
    "Adam.beta1": "the share β₁ of the mean of displacements that is kept",
    "Adam.beta2": "the share β₂ of the mean of their squares that is kept",
    "CharLSTM.hidden": "units of every recurrent layer",
    "FedNCM.distance": "whether directions or points are compared",
    "alpha": "the exponent α of class counts where the classifier is normalised by `gamma`",
    "beta": "the server's momentum β",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting as people read it: its path inside the piece, its default as TOML writes it, and a sentence."""

    name: str
    default: str
    text: str


def settings_of(cls: type[Any], prefix: str = "", given: Any = None) -> Iterator[Setting]:
    """Yield a piece's settings, with those of tables in it; `given` is a table whose values are the defaults."""
    hints = field_types(cls)
    for field in dataclasses.fields(cls):
        if field.name not in hints:
            continue
        value, hint = _default(field) if given is None else getattr(given, field.name), hints[field.name]
        text = _sentence(cls, field.name, hint, value)
        yield Setting(f"{prefix}{field.name}", _written(value, piece_kind(hint)), text)
        if dataclasses.is_dataclass(value) and piece_kind(hint) is None:
            yield from settings_of(type(value), f"{prefix}{field.name}.", value)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _written(value: Any, kind: str | None) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "–"
    if kind is not None and dataclasses.is_dataclass(value):
        return json.dumps(name_of(kind, value))
    return "a table" if dataclasses.is_dataclass(value) else json.dumps(value, ensure_ascii=False, default=str)


def _sentence(cls: type[Any], name: str, hint: Any, value: Any) -> str:
    kind, here = piece_kind(hint), (WORDS.get(f"{one.__name__}.{name}") for one in cls.__mro__)
    held = first_line(type(value)) if dataclasses.is_dataclass(value) and kind is None else ""
    piece = f"a piece: see `hansa ls {kind}`" if kind else ""
    said = next(filter(None, here), "") or _comment(cls, name) or _mention(cls, name)
    text = said or piece or held or WORDS.get(name, "")
    choices = ", ".join(json.dumps(one) for one in _choices(hint))
    return " ".join(filter(None, (_as_sentence(text), f"One of {choices}." if choices else "")))


def _as_sentence(text: str) -> str:
    first = text[:1].upper() if text[:1].isascii() else text[:1]  # a λ stays one
    return f"{first}{text[1:].rstrip('.')}." if text else ""


def first_line(cls: type[Any]) -> str:
    """Return the first line of a class's docstring."""
    return (cls.__doc__ or "").partition("\n")[0]


def _choices(hint: Any) -> tuple[str, ...]:
    """Return the words that a field may hold, where it may hold no others."""
    if typing.get_origin(hint) is typing.Literal:
        return tuple(one for one in typing.get_args(hint) if isinstance(one, str))
    return ()


def _mention(cls: type[Any], name: str) -> str:
    """Return the first sentence, or part of one, of the docstring that names a field; empty where none does."""
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z`])|;\s+", " ".join((cls.__doc__ or "").split()))
    return next((one for one in sentences if f"`{name}`" in one), "")


def _comment(cls: type[Any], name: str) -> str:
    """Return the comment beside a field, in the class that declares it; empty where there is none."""
    return _comments(next(one for one in cls.__mro__ if name in inspect.get_annotations(one))).get(name, "")


@functools.cache
def _comments(cls: type[Any]) -> dict[str, str]:
    """Return the comments beside the fields that a class declares."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines, (tree,) = source.splitlines(), ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno:
            after = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
            found[node.target.id] = after.partition("#")[2].strip(" …")
    return found
