"""`hansa predict` and `hansa save`: models of a run put to use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hansa.deploy.model import DeployedModel, load_model
from hansa.deploy.predict import Predictions, predict_file
from hansa.results.writer import write_whole


def show_predictions(source: Path, client: str | None, file: Path, out: Path | None, as_json: bool) -> None:
    """Predict for a file, and show or write the result."""
    model = load_model(source, client)
    found = predict_file(model, file)
    if out is not None:
        write_whole(out, found.csv())
        print(f"Wrote {out}: {len(found.rows)} predictions", file=sys.stderr)
    if as_json:
        print(json.dumps(_told(model, found), indent=1))
    elif out is None:
        _show(found)
    if found.accuracy is not None and not as_json:
        print(f"Accuracy: {found.accuracy:.1%} of {len(found.rows)} samples")


def _told(model: DeployedModel, found: Predictions) -> dict[str, object]:
    passport = model.passport
    about = {"run": passport.run, "phase": passport.phase, "client": passport.client, "accuracy": found.accuracy}
    return {**about, "predictions": [row.told() for row in found.rows]}


def _show(found: Predictions) -> None:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in found.rows[0].told():
        table.add_column(title, justify="right" if title == "probability" else "left")
    for row in found.rows:
        label = [] if row.label is None else [escape(row.label)]
        table.add_row(escape(row.row), escape(row.name), f"{row.probability:.4f}", *label)
    Console().print(table)


def save_model(source: Path, client: str | None, out: Path) -> None:
    """Write a model file."""
    written = load_model(source, client).save(out)
    print(f"Wrote {written}. Next: hansa predict {written} FILE")
