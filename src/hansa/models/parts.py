"""What a model is made of, and what it and its parts ask of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

from hansa.io.codec import field_types, piece_kind
from hansa.task import ClientInputs, Model, Network


@runtime_checkable
class FollowsClients(Protocol):
    """A model whose network depends on more than the shape of a client's inputs."""

    def fitted(self, clients: Sequence[ClientInputs]) -> Network:
        """Return the network of one client, or the one that several have in common."""
        ...


def follows_clients(model: Model) -> bool:
    """Tell whether a model, or one that it is made of, depends on more than the shape of a client's inputs."""
    return any(isinstance(one, FollowsClients) for one in parts_of(model))


def normalises(model: Model) -> bool:
    """Tell whether a model, or one that it is made of, prepares pictures itself and so must get them in [0, 1]."""
    return any(getattr(one, "normalises", False) for one in parts_of(model))


@runtime_checkable
class ReadsTexts(Protocol):
    """A model that reads texts, as token numbers of its own making."""

    def tokens(self, texts: Any) -> Any:
        """Return token numbers (n × length) of n texts."""
        ...


def reader_of(model: Model) -> ReadsTexts | None:
    """Return the model, or the one that it is made of, that turns texts into token numbers."""
    return next((one for one in parts_of(model) if isinstance(one, ReadsTexts)), None)


def here_only(model: Model) -> bool:
    """Tell whether a model, or one that it is made of, is an object of this process, which no other could build."""
    return any(getattr(one, "here_only", False) for one in parts_of(model))


def fingerprint_of(model: Model) -> str:
    """Return a name of the weights that a model, and those it is made of, come with; empty where they have none."""
    return " ".join(cast(Any, one).fingerprint() for one in parts_of(model) if hasattr(one, "fingerprint"))


def parts_of(model: Model) -> Iterator[Model]:
    """Yield a model and all that it is made of, from the outside in."""
    yield model
    for inner in _inner(model).values():
        yield from parts_of(inner)


def fitted(model: Model, clients: Sequence[ClientInputs]) -> Network:
    """Return the network of one client, or the one that several have in common."""
    if isinstance(model, FollowsClients):
        return model.fitted(clients)
    for name, inner in _inner(model).items():
        if follows_clients(inner):
            found = fitted(inner, clients)
            return Network(replace(cast(Any, model), **{name: found.model}), found.input_shape)
    return Network(model, clients[0].shape)


def _inner(model: Model) -> dict[str, Model]:
    """Return the models that a model is made of, by the setting that holds them."""
    hints: Mapping[str, Any] = field_types(type(model)) if is_dataclass(model) else {}
    found = {name: getattr(model, name) for name, hint in hints.items() if piece_kind(hint)}
    return {name: inner for name, inner in found.items() if hasattr(inner, "build")}
