"""What a run will send, told before it begins where that is much."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress

from hansa.payload import Role
from hansa.results.report.format import bytes_text
from hansa.running.cost import Traffic, predict_traffic
from hansa.running.experiment import Experiment, Phase
from hansa.tree import Tree

TOLD_FROM = 1e9  # bytes; a run that sends less is not announced
LARGER = 4  # times a model and the server's state: more than any message of the catalogue


def announcement(experiment: Experiment) -> str:
    """Return a sentence about what a run will send, as its ledger will charge it; none where that is little.

    Nothing is rehearsed where a run can hardly send much, and of others no more than tells the sizes of messages.
    """
    if sum(_at_most(experiment, phase) for phase in experiment.phases) < TOLD_FROM:
        return ""
    with warnings.catch_warnings(), suppress(Exception):  # what few samples cannot do, a run may
        warnings.simplefilter("ignore")  # the run itself will say it
        found = predict_traffic(experiment)
        waiting = any(phase.deadline is not None for phase in experiment.phases)
        return _said(found, about=waiting or not all(one.exact for one in found))
    return ""


def _said(found: Sequence[Traffic], about: bool) -> str:
    evaluating, sent = sum(one.total("bytes_evaluate") for one in found), sum(map(_sent, found))
    if sent + evaluating < TOLD_FROM:
        return ""
    up, down = (sum(one.total(key) for one in found) for key in ("bytes_up", "bytes_down"))
    says = f"This run will send {'about ' if about else ''}{bytes_text(sent)}, "
    says += f"{bytes_text(up)} up and {bytes_text(down)} down"
    if len(found) > 1:
        most = max(found, key=_sent)
        own = f"{bytes_text(most.total('bytes_up'))} up and {bytes_text(most.total('bytes_down'))} down"
        says += f", most of it in phase '{most.name}' ({own})"
    if evaluating >= TOLD_FROM:
        says += f", and {bytes_text(evaluating)} to evaluate"
    return f"{says}; 'hansa cost' tells more."


def _sent(traffic: Traffic) -> float:
    return traffic.total("bytes_up") + traffic.total("bytes_down")


def _at_most(experiment: Experiment, phase: Phase) -> float:
    """Return bytes that a phase will not exceed, without rehearsing anything."""
    task, algorithm = experiment.task, phase.algorithm
    try:
        message = LARGER * (_bytes(task.params()) + _bytes(algorithm.server_init(task)))
    except Exception:  # of a phase that builds on what earlier ones learn
        return math.inf
    if Role.EACH in algorithm.uplink.values():  # the server may hand on what everybody sent
        message *= max(1, task.population)
    evaluations = 1 + phase.rounds / phase.evaluate_every
    visits = phase.rounds * phase.orchestration.scale(task.population).visits
    return message * (2.0 * visits + evaluations * task.population)


def _bytes(tree: Tree) -> int:
    return sum(leaf.nbytes for leaf in tree.values())
