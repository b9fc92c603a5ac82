"""The privacy ledger of a run: every release that saw the same data, and what all of them are worth together."""

from __future__ import annotations

from typing import Any

from hansa.channels.accounting import Release, common_unit, total_epsilon
from hansa.running.phase_run import PhaseRun

SCALES = "mean and scale of the table's columns, which are taken over the training rows of all clients"
PIXELS = "mean and scale of the pictures' channels, which are taken over the training samples of all clients"
TRUSTS = ("central", "distributed", "local")  # what a promise needs, the most first


def account(run: PhaseRun) -> dict[str, Any] | None:
    """Return the ledger up to a phase, those of a continued run included; None where nothing claims privacy.

    A phase's planned rounds are booked when it begins.  ε is None where a phase is unprotected: nothing is promised.
    """
    found = [(one.phase.name, one.algorithm.releases(one.task, one.server)) for one in _phases(run)]
    booked = [(name, release) for name, releases in found for release in releases or ()]
    if not booked:
        return None
    every, unprotected = [release for _, release in booked], [name for name, releases in found if releases is None]
    delta = max(one.delta for one in every)
    return {
        "epsilon": None if unprotected else total_epsilon(every, delta),
        "delta": delta,
        "unit": common_unit(every),
        "trust": next(trust for trust in TRUSTS if any(one.trust == trust for one in every)),
        "noise": "system" if all(one.noise == "system" for one in every) else "simulated",
        "unprotected": unprotected,
        "outside": [SCALES] * (run.federation.encoding is not None) + [PIXELS] * bool(run.federation.pixels),
        "releases": [_entry(name, release) for name, release in booked],
    }


def _phases(run: PhaseRun) -> list[PhaseRun]:
    """Return all phases up to one, the first one first."""
    return [*(_phases(run.previous) if run.previous else ()), run]


def _entry(name: str, release: Release) -> dict[str, Any]:
    """Return one line of the ledger."""
    return {
        "phase": name,
        "epsilon": total_epsilon([release], release.delta),
        "delta": release.delta,
        "multiplier": release.multiplier,
        "count": release.count,
        "unit": release.unit,
        "trust": release.trust,
        "noise": release.noise,
    }
