"""The privacy of a plan's phases together: one that is not protected takes back what the others promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hansa.channels.accounting import Release
from hansa.channels.channel import Channel
from hansa.channels.secure_sum import SecureSum
from hansa.errors import Problems
from hansa.running.experiment import Phase
from hansa.task import Task


def check_privacy(phases: Sequence[Phase], task: Task, channel: Channel | None = None) -> None:
    """Refuse a plan that claims privacy and does not keep it."""
    found = [phase.algorithm.releases(_seen(phase, task), {}) for phase in phases]
    if not any(found):
        return
    problems = [why for phase, releases in zip(phases, found, strict=True) for why in _problems(phase, releases, task)]
    problems += [
        f"Phase '{phase.name}' divides its noise among clients, so that none of them is protected by itself: "
        "set channel = 'secure-sum', which opens their sum alone, or trust = 'central'."
        for phase, releases in zip(phases, found, strict=True)
        if any(one.trust == "distributed" for one in releases or ()) and not isinstance(channel, SecureSum)
    ]
    if problems:
        raise Problems(problems)


def _seen(phase: Phase, task: Task) -> Task:
    """Return the task with what is known of a phase before it begins."""
    return replace(task, rounds=phase.rounds, cohort=phase.orchestration.scale(task.population).visits)


def _problems(phase: Phase, releases: tuple[Release, ...] | None, task: Task) -> list[str]:
    """Return what is wrong with one phase of a plan that claims privacy."""
    if releases is None:
        says = f"Phase '{phase.name}' learns from the clients without privacy, so the other phases protect nobody"
        return [] if phase.unprotected else [f"{says}: leave it out, or set unprotected = true, which is reported."]
    central = [one for one in releases if one.trust == "central"]
    problems = []
    if central and phase.remember != "nothing" and not all(one.keeps for one in central):
        says = f"Phase '{phase.name}' has privacy and would remember every client's upload without noise"
        problems.append(f"{says}: set remember = 'nothing', or keep_sums = true where the algorithm has it.")
    if any(one.sampled for one in releases) and not phase.orchestration.uniform:
        says = f"Phase '{phase.name}' counts on a secret draw of clients, which {phase.orchestration} does not make"
        problems.append(f"{says}: use the orchestration 'star', or cohorts = 'known'.")
    if central and phase.orchestration.scale(task.population).window > 1:
        says = f"Phase '{phase.name}' has privacy, and models that go on for several rounds would be known before noise"
        problems.append(f"{says}: use the orchestration 'star' or 'sweep'.")
    return problems
