"""Federated learning when clients differ.

    import hansa
    run = hansa.run("digits-fed3r")
    print(run.summary["phases"][0]["metrics"])

Names are imported when first used, so `import hansa` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hansa.api import resume, run
    from hansa.contract import Algorithm
    from hansa.data.arrays import dataset_from_arrays
    from hansa.data.federation import Federation, federation_from_clients
    from hansa.deploy.adapt import adapt
    from hansa.deploy.model import load_model
    from hansa.errors import HansaError
    from hansa.payload import Role, Update
    from hansa.plan.files import read_plan
    from hansa.plan.schema import DataPlan, PhasePlan, Plan
    from hansa.results.reader import Run
    from hansa.ridge import RegressionStatistics, RidgeStatistics
    from hansa.task import ClientData, Task

__version__ = "0.1.0"

_WHERE = {
    "run": "api",
    "resume": "api",
    "Algorithm": "contract",
    "dataset_from_arrays": "data.arrays",
    "Federation": "data.federation",
    "federation_from_clients": "data.federation",
    "adapt": "deploy.adapt",
    "load_model": "deploy.model",
    "HansaError": "errors",
    "Role": "payload",
    "Update": "payload",
    "read_plan": "plan.files",
    "DataPlan": "plan.schema",
    "PhasePlan": "plan.schema",
    "Plan": "plan.schema",
    "Run": "results.reader",
    "RegressionStatistics": "ridge",
    "RidgeStatistics": "ridge",
    "ClientData": "task",
    "Task": "task",
}

__all__ = [
    "Algorithm",
    "ClientData",
    "DataPlan",
    "Federation",
    "HansaError",
    "PhasePlan",
    "Plan",
    "RegressionStatistics",
    "RidgeStatistics",
    "Role",
    "Run",
    "Task",
    "Update",
    "adapt",
    "dataset_from_arrays",
    "federation_from_clients",
    "load_model",
    "read_plan",
    "resume",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'hansa' has no attribute '{name}'")
    return getattr(importlib.import_module(f"hansa.{_WHERE[name]}"), name)
