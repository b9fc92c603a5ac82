"""Advice: which plans to try first on some data, by rules that each follow from a page of results.

`docs/explanation-advice.md` has the same rules with their reasons; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hansa.data.federation import Client, Federation, has_samples, labels_of
from hansa.data.heterogeneity import measure
from hansa.data.targets import Real
from hansa.lazy import torch
from hansa.plan.looking import Draft, Table

MOST = 3  # plans that are advised
SOME = 0.5  # of all classes: clients that have fewer on average have few
OUTSIDE = 0.05  # of test samples of classes that their client never trains on: more are lost by what is its own
ALIKE = 0.05  # divergence of clients' labels from everybody's below which they are alike
RANDOM = (500, 5000)  # random features, at least and at most
FEW = 30  # classes that are looked at one by one
CROWD = 100  # clients that make training one after the other worth its while


@dataclass(frozen=True)
class Facts:
    """What rules go by."""

    clients: int
    samples: int
    classes: int  # 0 for a real target
    width: int  # of frozen features; 0 where there are none
    share: float  # of all classes that a client has, on average
    outside: float  # share of clients' own test samples that are of classes they never train on
    divergence: float  # of clients' labels from everybody's, 0 to 1
    own_tests: bool  # whether clients have test samples of their own
    apart: bool  # whether clients have columns that others have not
    kind: str  # of the inputs: pictures, numbers, tokens or text
    unlike: bool = False  # … and a column is text at one client and numbers at another
    gpu: bool = False  # whether this machine has one


@dataclass(frozen=True)
class Rule:
    """When a plan is worth a try, the phases of it, and the page of results that says so."""

    name: str
    page: str
    applies: Callable[[Facts], bool]
    reason: str  # with facts in brackets
    steps: tuple[Table | Callable[[Facts], Table], ...]
    model: Callable[[Facts], Table] | None = None
    thaws: bool = False  # whether it trains the network that features would come from, on a GPU

    def why(self, facts: Facts) -> str:
        """Return the reason, with the numbers of some data."""
        return self.reason.format(**asdict(facts))

    def phases(self, facts: Facts) -> list[Table]:
        """Return the phases of the plan."""
        return [one(facts) if callable(one) else one for one in self.steps]


def _averaging(facts: Facts) -> Table:
    star = {"name": "star", "clients": min(10, facts.clients)}
    made = {"name": "fedavg", "local": {"lr": 0.05, "epochs": 1, "batch_size": 32}}
    return {"algorithm": made, "orchestration": star, "rounds": 50, "evaluate_every": 10}


def _tuning(facts: Facts) -> Table:
    """Return training that nobody gives rates: they follow from the closed form before it."""
    made = {"name": "fedavg", "local": {"batch_size": 50, "weight_decay": 4e-5}}
    return {**_averaging(facts), "algorithm": made, "rounds": 70}


def _random_features(facts: Facts) -> Table:
    """Return a map to twice as many features as there are samples: more of them cost bytes and span nothing new."""
    least, most = RANDOM
    return {"name": "random-features", "inner": "linear", "dimension": min(most, max(least, 2 * facts.samples))}


def _in_chains(facts: Facts) -> Table:
    return {**_averaging(facts), "orchestration": {"name": "fedseq", "superclients": max(2, facts.clients // 10)}}


ON_GPU: Table = {"name": "vectorised", "device": "cuda", "precision": "bf16"}
ALONE: Table = {"algorithm": "local", "orchestration": "sweep", "rounds": 25, "evaluate_every": 5}

RULES = (
    Rule(
        "fedavg-union",
        "flic",
        lambda facts: facts.apart and not facts.unlike,
        "clients' tables have different columns; training over all columns was above training alone",
        (_averaging,),
    ),
    Rule(
        "fedavg-tokens",
        "flic",
        lambda facts: facts.unlike,
        "a column is not of one kind everywhere; a network with leaves for each column needs no common table",
        (_averaging,),
        lambda _: {"name": "column-tokens"},
    ),
    Rule(
        "oll-fed3r",
        "personalisation",
        lambda f: f.width > 0 and f.classes > 1 and f.own_tests and f.share <= SOME and f.outside <= OUTSIDE,
        "a client has {share:.0%} of the classes and is tested on no others, which is what OLL makes use of",
        ({"algorithm": "fed3r", "oll": True},),
    ),
    Rule(
        "fed3r",
        "fed3r",
        lambda f: f.width > 0 and f.classes > 1,
        "features are frozen: the closed form is the same however unlike clients are, in one round",
        ({"algorithm": "fed3r"},),
    ),
    Rule(
        "fed3r-finetune",
        "finetune",
        lambda f: f.gpu and f.width > 0 and f.kind == "pictures" and f.classes > 1,
        "a GPU is here: from the closed form the whole network trains on, at rates that nobody has to choose",
        ({"algorithm": "fed3r"}, _tuning),
        lambda _: {"name": "efficientnet-lite", "size": 112},
        thaws=True,
    ),
    Rule(
        "fedseq",
        "fedseq",
        lambda f: f.width == 0 and f.clients >= CROWD and f.classes > 1 and f.divergence > ALIKE and not f.apart,
        "{clients} unlike clients train a network: in chains they reached more than side by side",
        (_in_chains,),
    ),
    Rule(
        "fedavg",
        "fed3r",
        lambda f: f.width == 0 and not f.apart,
        "raw inputs are no features: a network has to learn some, and averaging is the plain way",
        (_averaging,),
    ),
    Rule(
        "fedavg-head",
        "fed3r",
        lambda f: f.width > 0 and f.divergence <= ALIKE,
        "clients are alike, where 300 rounds of averaging were above the closed form",
        (_averaging,),
    ),
    Rule(
        "fed3r-rf",
        "fed3r",
        lambda f: f.width == 0 and f.kind == "numbers" and f.classes > 1 and not f.apart,
        "on raw numbers random features and a closed form were above averaging, in one round",
        ({"algorithm": {"name": "feature-scale", "factor": 2.0}}, {"algorithm": "fed3r"}),
        _random_features,
    ),
    Rule(
        "fedavg-fp",
        "personalisation",
        lambda f: f.own_tests and f.width == 0 and f.divergence > ALIKE and f.outside <= OUTSIDE and not f.apart,
        "clients differ, and are tested on classes that they have: each trains on by itself at the end",
        (_averaging, ALONE),
    ),
    Rule(
        "local",
        "flic",
        lambda f: f.own_tests,
        "what a client reaches alone is what a federation has to beat",
        (ALONE,),
    ),
    Rule(
        "fedavg-features",
        "fed3r",
        lambda f: f.width > 0 and f.divergence > ALIKE,
        "training the head in rounds is what the one round of the closed form has to beat",
        (_averaging,),
    ),
)


def facts_of(draft: Draft, federation: Federation, width: int) -> Facts:
    """Return what rules go by; `width` is that of frozen features, 0 where there are none."""
    real = isinstance(federation.target, Real)
    sizes = federation.sizes()
    own = [client for client in federation.clients.values() if has_samples(client, "test")]
    found = None if real else measure(federation.label_counts())
    return Facts(
        clients=len(sizes),
        samples=sum(sizes.values()),
        classes=0 if real else federation.num_classes,
        width=width,
        share=1.0 if found is None else float(found.classes_per_client.mean()) / federation.num_classes,
        outside=0.0 if real else _outside(own),
        divergence=1.0 if found is None else float(found.jensen_shannon.mean()),
        own_tests=bool(own),
        apart=draft.source.get("columns_of") in ("union", "file"),
        kind=draft.kind,
        unlike=draft.source.get("columns_of") == "file",
        gpu=draft.features is not None and torch.cuda.is_available(),  # torch is slow to import: not for tables
    )


def _outside(clients: Sequence[Client]) -> float:
    """Return the share of clients' test samples that are of classes they do not train on."""
    pairs = [(labels_of(client), labels_of(client, "test")) for client in clients]
    lost = sum(int((~np.isin(test, train)).sum()) for train, test in pairs)
    return lost / max(sum(len(test) for _, test in pairs), 1)


def advised(facts: Facts) -> list[Rule]:
    """Return the rules that apply, the first ones first."""
    return [rule for rule in RULES if rule.applies(facts)][:MOST]


def plan_table(draft: Draft, rule: Rule, facts: Facts, name: str) -> Table:
    """Return the plan of a rule on some data."""
    data: Table = {"source": draft.source, "partition": draft.partition}
    data |= {"test": draft.test} if draft.test else {}
    data |= {"features": draft.features} if draft.features and not rule.thaws else {}
    return {
        "name": name,
        **({"evaluate": {"metrics": ["confusion"]}} if 1 < facts.classes <= FEW else {}),
        "data": data,
        "model": rule.model(facts) if rule.model else model_of(draft),
        "phases": rule.phases(facts),
        **({"engine": ON_GPU} if rule.thaws else {}),
    }


def model_of(draft: Draft) -> Table:
    """Return a first model for inputs of a kind."""
    if draft.features is not None:
        return {"name": "linear"}
    return {"pictures": {"name": "cnn"}, "tokens": {"name": "char-lstm"}}.get(
        draft.kind, {"name": "mlp", "hidden": [64]}
    )
