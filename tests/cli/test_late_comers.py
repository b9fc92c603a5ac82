"""Clients that come after a closed form's round: another run adds their sums to those of the first."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa import api
from hansa.data.federation import Federation
from hansa.errors import HansaError
from hansa.io.store import DiskStore, checkpoint_of
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.plan.schema import Plan
from hansa.results.reader import Run
from hansa.tree import Tree

PLAN = """
[data]
source = "digits"
partition = { name = "dirichlet", clients = 6, alpha = 0.5 }
[[phases]]
algorithm = { name = "fed3r", wire = "float64", products = "float64" }
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def only(plan: Path, *places: int) -> Federation:
    """Some of the clients."""
    whole = assemble(read_plan(plan)).experiment.federation
    names = list(whole.clients)
    return replace(whole, clients={names[place]: whole.clients[names[place]] for place in places})


def adding(plan: Path, run: str, *changes: str) -> Plan:
    return read_plan(plan, [f"start={{run='{plan.parent / run}', add=true}}", *changes])


def sums(run: Run) -> Tree:
    with closing(DiskStore(checkpoint_of(run.path), read_only=True)) as store:
        return store.get("0/server") or {}


@pytest.mark.parametrize("engine", ["serial", "auto", "{name='flower', carrier={name='loopback', folder='SITES'}}"])
def test_late_comers_give_the_sums_of_everybody(plan: Path, engine: str) -> None:
    """One after the other: a run that adds may be added to."""
    here, change = plan.parent, f"engine={engine}".replace("SITES", str(plan.parent / "sites"))
    everybody = api.run(plan, out=here / "all", changes=["engine=serial"])
    api.run(read_plan(plan, [change]), out=here / "first", data=only(plan, 0, 1, 2, 3))
    api.run(adding(plan, "first", change), out=here / "second", data=only(plan, 0, 1, 2, 3, 4))
    last = api.run(adding(plan, "second", change), out=here / "third")
    mine, theirs = sums(last), sums(everybody)
    assert mine.keys() == theirs.keys()
    for key, leaf in theirs.items():
        assert float((mine[key] - leaf).norm()) <= 1e-12 * float(leaf.norm())
    assert last.ledger().to_pydict()["visits"] == [0, 0, 0, 0, 0, 1]
    assert last.rounds[-1]["metrics"] == pytest.approx(everybody.rounds[-1]["metrics"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "places", "says"),
    [
        (["phases.0.algorithm={name='fed3r'}"], (0, 1, 2), "its algorithm is Fed3R"),
        (["phases=[{algorithm='fedavg'}]"], (0, 1, 2), "its algorithm is Fed3R"),
        (["seed=1"], (0, 1, 2), "its seed is 0. Use the same"),
        ([], (0, 1), "all clients of this plan are in it already"),
        (["phases.0.orchestration={name='sweep', clients=2}", "phases.0.rounds=2"], (0, 1, 2), "do not visit each"),
    ],
)
def test_what_cannot_be_added_is_refused(plan: Path, changes: list[str], places: tuple[int, ...], says: str) -> None:
    api.run(plan, out=plan.parent / "first", changes=["engine=serial"], data=only(plan, 0, 1))
    with pytest.raises(HansaError, match=f"Nothing can be added to phase 'fed3r' of the run .*: .*{says}"):
        api.run(adding(plan, "first", *changes), out=plan.parent / "no", data=only(plan, *places))
    assert not (plan.parent / "no").exists()


def test_what_is_no_sum_cannot_be_added_to(plan: Path) -> None:
    trained: Any = ["phases=[{algorithm='fedavg', rounds=1}]"]
    api.run(read_plan(plan, trained), out=plan.parent / "first", data=only(plan, 0, 1))
    with pytest.raises(HansaError, match="what its server has is no sum of what clients sent"):
        api.run(adding(plan, "first", *trained), out=plan.parent / "no", data=only(plan, 0, 1, 2))
