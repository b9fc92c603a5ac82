"""Exhibits of FLIC: how near clients' classes come to their anchors, and where both lie."""

from __future__ import annotations

from collections.abc import Mapping

from hansa.lazy import Tensor, torch
from hansa.metrics.exhibits import Exhibit, neighbour_plane, principal_plane
from hansa.tree import Tree

POINTS = 400  # that a drawing can tell apart
PLANE, NEIGHBOURS = "classes in the latent space", "neighbours in the latent space"  # titles of the scatters


def latent_space(
    centres: Tensor, observed: Mapping[str, Tree], when: str = "", *, neighbours: bool
) -> tuple[Exhibit, ...]:
    """Return the distances of all clients' class means from the anchors (C × k) as a curve, and both as a scatter.

    With `neighbours` there is a second scatter, t-SNE's.  `when` is a sentence that comes before what a scatter shows.
    """
    names, means = list(observed), torch.stack([own["latent.mean"] for own in observed.values()])
    held = torch.stack([own["latent.held"] for own in observed.values()])
    far = torch.linalg.vector_norm(means - centres, dim=2)[held]
    curve = {"mean": [float(far.mean())], "largest": [float(far.max())]}
    note = "Of the means of clients' classes."
    if all("latent.bures" in own for own in observed.values()):
        shapes = torch.stack([own["latent.bures"] for own in observed.values()])[held]
        curve["mean W2"] = [float((far.square() + shapes.clamp(min=0)).sqrt().mean())]
        note = "Of the means of clients' classes, and as W2, which counts their covariances too."
    where = held.nonzero()[:POINTS]
    points = torch.cat([centres, means[where[:, 0], where[:, 1]]])
    groups = [*range(len(centres)), *where[:, 1].tolist()]
    told = {
        "group": [f"class {number}" for number in groups],
        "name": ["anchor"] * len(centres) + [names[row] for row in where[:, 0].tolist()],
    }
    left = f"; the first {POINTS} of {int(held.sum())} means" if len(where) < int(held.sum()) else ""
    says = f"of the anchors and of the mean of every class that a client trains on{left}."

    def scatter(title: str, plane: Tensor, axis: str, what: str) -> Exhibit:
        places = {f"{axis} {place + 1}": plane[:, place].tolist() for place in range(2)}
        return Exhibit(title, "scatter", {**places, **told}, f"{when} {what} {says}".strip())

    found = (
        Exhibit("distance of classes from their anchors", "curve", curve, note),
        scatter(PLANE, principal_plane(points), "PC", "Principal components"),
    )
    return (*found, scatter(NEIGHBOURS, neighbour_plane(points), "t-SNE", "t-SNE")) if neighbours else found
