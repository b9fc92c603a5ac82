"""`hansa predict`, `hansa save` and `hansa adapt`: models of a run put to use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.text import Text

from hansa.cli.console import bare_table, plain, show
from hansa.deploy.adapt import adapt
from hansa.deploy.model import DeployedModel, load_model
from hansa.deploy.predict import Predictions, predict_file
from hansa.io.files import write_whole


def show_predictions(
    source: Path, client: str | None, file: Path, out: Path | None, as_json: bool, trust: bool
) -> None:
    """Predict for a file, and show or write the result."""
    model = load_model(source, client, trust=trust)
    found = predict_file(model, file)
    if out is not None:
        write_whole(out, found.csv())
        print(f"Wrote {out}: {len(found.rows)} predictions", file=sys.stderr)
    if as_json:
        print(json.dumps(_told(model, found), indent=1))
    elif out is None:
        _show(found)
    if not as_json and (told := _quality(found)):
        print(told)


def _quality(found: Predictions) -> str:
    """Return how good the predictions are, as a line; nothing where the file has no labels."""
    of = f"{len(found.rows)} samples"
    if found.rmse is not None:
        return f"RMSE: {found.rmse:.4g} over {of}"
    return "" if found.accuracy is None else f"Accuracy: {found.accuracy:.1%} of {of}"


def _told(model: DeployedModel, found: Predictions) -> dict[str, object]:
    card = model.card
    quality = {"rmse": found.rmse} if model.real else {"accuracy": found.accuracy}
    about = {"run": card.run, "phase": card.phase, "client": card.client, **quality}
    return {**about, "predictions": [row.told() for row in found.rows]}


def _show(found: Predictions) -> None:
    table = bare_table()
    for title, value in found.rows[0].told().items():
        table.add_column(plain(title), justify="right" if isinstance(value, float) else "left")
    for row in found.rows:
        table.add_row(*[_cell(title, value) for title, value in row.told().items()])
    show(table)


def _cell(title: str, value: object) -> Text:
    if isinstance(value, float):
        return plain(f"{value:.4f}" if title == "probability" else f"{value:.6g}")
    return plain(str(value))


def save_model(source: Path, client: str | None, out: Path, trust: bool) -> None:
    """Write a model file."""
    written = load_model(source, client, trust=trust).save(out)
    print(f"Wrote {written}. Next: hansa predict {written} FILE")


def adapt_model(source: Path, data: Path, client: str, rounds: int, out: Path, trust: bool) -> None:
    """Learn the model of a client that joins, and write it as a file."""
    written = adapt(source, data, client, rounds=rounds, trust=trust).save(out)
    print(f"Wrote {written}; nothing was sent, and the run is as it was. Next: hansa predict {written} FILE")
