"""Robust aggregation: a server that does not let a few wrong uploads decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.guarded import GROUP, Guarded
from hansa.algorithms.private import Private, sum_over_samples
from hansa.channels.accounting import Release
from hansa.contract import Algorithm
from hansa.errors import require
from hansa.io.registry import Piece
from hansa.lazy import Tensor, torch
from hansa.payload import WEIGHT, Role, Update
from hansa.server.robust_rules import Median, Rule
from hansa.task import Task
from hansa.training.wrappers import Wrapper, layers
from hansa.tree import Tree, is_finite, nest, pick, scale


@dataclass(frozen=True)
class Robust(Wrapper):
    """Wraps an algorithm that averages: its server gets the round's robust aggregate in place of the weighted mean.

    Clients do and send what they always did, but the server keeps every upload of the round (`EACH`) and applies the
    `rule` to each group of leaves on its own: to displacements, `g = rule{Δ_k}` in place of `Σ p_k·Δ_k / Σ p_k`, and to
    what the algorithm sums up beside them (SCAFFOLD's changes of control, Mime's gradients) in the same way.  So nobody
    can poison a control or a momentum either; SCAFFOLD's server control is then no longer the mean of the clients'.  An
    upload with a number that is not finite, or of a wrong shape, is refused by the client's name.
    A guard inside judges by what the rule makes of the reports, so that a few false ones decide nothing; it must not
    ask for losses by class, of which most clients lack most.
    Closed forms are refused: their sums are exact only if every sample counts.
    """

    inner: Annotated[Algorithm, Piece("algorithm")] = FedAvg()
    rule: Annotated[Rule, Piece("rule")] = Median()

    def __post_init__(self) -> None:
        name, roles = type(self.inner).__name__, set(self.inner.uplink.values())
        averages = Role.STEP in roles and not self.inner.one_shot
        require(averages, f"Robust can wrap algorithms that average what clients trained only. Got {name}.")
        private = any(isinstance(one, Private) for one in layers(self.inner))
        require(not private, "Robust cannot wrap Private: its noise hides sums, and a rule needs single uploads.")
        whole = not self.inner.partial
        require(whole, f"Robust needs the same leaves of every client, and of {name} some may not upload all.")
        by_class = any(isinstance(one, Guarded) and one.by_class for one in layers(self.inner))
        require(
            not by_class,
            "Robust cannot combine losses by class, which most clients lack: set its guard's 'by_class' = false.",
        )
        require(Role.EACH not in roles, f"Robust cannot wrap {name}, whose server keeps single uploads already.")

    @property
    def uplink(self) -> Mapping[str, Role]:
        """The server needs every client's own upload."""
        return dict.fromkeys(self.inner.uplink, Role.EACH)

    def server_init(self, task: Task) -> Tree:
        """Return the wrapped algorithm's state, if all it sums up is about leaves of the model."""
        server, name = self.inner.server_init(task), type(self.inner).__name__
        odd = sum_over_samples(self.inner, server, task, but=(GROUP,))
        require(not odd, f"Robust cannot wrap {name}: its '{odd}' is a sum over samples, which no rule may thin.")
        return server

    def decode(self, task: Task, wire: Tree) -> Tree:
        """Decode as the wrapped algorithm does, if the rules can compute with the result."""
        sums, like = self.inner.decode(task, wire), task.params()
        for key, leaf in sums.items():
            group, _, about = key.partition(".")
            if group == GROUP:
                continue  # what clients say of their loss, which a rule combines as it is
            require(about in like, f"Robust combines what is about leaves of the model. Got '{key}'.")
            expected, got = list(like[about].shape), list(leaf.shape)
            require(got == expected, f"'{key}' must have the shape {expected}. Got {got}.")
            require(is_finite(leaf), f"'{key}' has numbers that are not finite.")
        return sums

    def server_step(self, task: Task, server: Tree, cohort: Update) -> Tree:
        """Take the wrapped step from the robust aggregate."""
        return self.inner.server_step(task, server, self.aggregate(cohort))

    def releases(self, task: Task, server: Tree) -> tuple[Release, ...] | None:
        """Return None: a rule looks at every single upload."""
        return None

    def aggregate(self, cohort: Update) -> Update:
        """Return the update that the wrapped algorithm takes for the sum of the round's uploads."""
        weights, sums = torch.stack([own[WEIGHT] for own in cohort.each.values()]), dict[str, torch.Tensor]()
        for group in self.inner.uplink:
            uploads = [pick(group, own) for own in cohort.each.values()]
            if uploads[0]:  # Mime sends one group in one round and another in the next
                sums |= nest(group, scale(self._combine(uploads, weights), self._total(weights)))
        return Update(sums, self._total(weights), cohort.count, cohort.flops)

    def _combine(self, uploads: Sequence[Tree], weights: Tensor) -> Tree:
        """Apply the rule to whole uploads, each divided by its client's weight."""
        like = uploads[0]
        rows = torch.stack([torch.cat([up[key].flatten() for key in like]) for up in uploads])
        row = self.rule.combine(rows.div_(weights[:, None].to(rows.dtype)), weights)
        parts = row.split_with_sizes([leaf.numel() for leaf in like.values()])
        return {key: part.reshape(leaf.shape) for (key, leaf), part in zip(like.items(), parts, strict=True)}

    def _total(self, weights: Tensor) -> float:
        """Return the total weight; by an unweighted rule all weigh the median, so a false weight moves nothing."""
        return float(weights.sum() if self.rule.weighted else weights.median() * len(weights))
