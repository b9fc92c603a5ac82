"""Damaged model files and run folders: opened, shown and used for a prediction, each works or is refused."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.numpy

import hansa
from hansa.deploy.model import load_model
from hansa.deploy.predict import predict_file
from hansa.results.reader import Run
from hansa.results.report import build
from hansa.results.rows import comparison

from . import inputs
from .campaign import campaign
from .values import changed, damaged

PLANS = {
    "global": ("digits-fed3r", []),
    "trained": ("digits-fedavg", ["phases.0.rounds=2", "model={name='mlp', hidden=[8]}"]),
}
JSON = ("data.json", "env.json", "summary.json")


@cache
def folder() -> Path:
    """Two finished runs and their model files, made once."""
    place = Path(tempfile.mkdtemp(prefix="hansa-fuzz-"))
    for name, (plan, changes) in PLANS.items():
        fewer = ["data.partition={name='iid', clients=4}", *changes]
        hansa.run(plan, out=place / name, changes=fewer)
        load_model(place / name).save(place / f"{name}.safetensors")
    return place


def model_file(rng: random.Random) -> None:
    """A model file with damage in its bytes, its card or its header predicts, or is refused."""
    content = (folder() / f"{rng.choice(list(PLANS))}.safetensors").read_bytes()
    if rng.random() < 0.3:
        content = damaged(content, rng)
    else:
        length = struct.unpack_from("<Q", content)[0]
        header = json.loads(content[8 : 8 + length])
        card = json.loads(header["__metadata__"]["hansa"])
        header["__metadata__"]["hansa"] = json.dumps(changed(card, rng))
        text = json.dumps(header).encode()
        content = struct.pack("<Q", len(text)) + text + content[8 + length :]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "m.safetensors"
        file.write_bytes(content)
        load_model(file).probabilities(np.zeros((2, 64), np.float32))


def run_folder(rng: random.Random) -> None:
    """A run folder with one damaged file is shown, compared and used, or refused."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        shutil.copytree(folder() / rng.choice(list(PLANS)), run)
        file = run / rng.choice((*JSON, *JSON, "plan.toml", "rounds.jsonl", "clients.parquet", "ledger.parquet"))
        if file.is_file():
            file.write_bytes(_spoilt(file, rng))
        rng.choice((_shown, _compared, _used))(run)


def _spoilt(file: Path, rng: random.Random) -> bytes:
    if file.suffix == ".json" and rng.random() < 0.7:
        return json.dumps(changed(json.loads(file.read_text(encoding="utf-8")), rng)).encode()
    if file.suffix == ".jsonl" and rng.random() < 0.7:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        told = changed(lines, rng)
        return "".join(json.dumps(line) + "\n" for line in told if isinstance(told, list)).encode()
    return damaged(file.read_bytes(), rng)


def _shown(run: Path) -> None:
    build([run], run / "page.html")


def _compared(run: Path) -> None:
    from hansa.cli.console import show_comparison

    opened = Run.open(run)
    comparison([opened])
    show_comparison([opened])


def _used(run: Path) -> None:
    load_model(run).predict(np.zeros((2, 64), np.float32))


def samples(rng: random.Random) -> None:
    """Samples with damage, or of odd types and shapes, are predicted or refused."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / f"x.{rng.choice(('npy', 'npz', 'safetensors'))}"
        x, y = np.zeros((12, 64), np.float32), np.arange(12) % 10
        odd = [array for array in inputs.ODD_ARRAYS if not array.dtype.hasobject and array.dtype.names is None]
        x, y = (x, y) if rng.random() < 0.4 else (rng.choice((x, *odd)), rng.choice((y, *odd)))
        _write(file, x, y)
        if rng.random() < 0.5:
            file.write_bytes(damaged(file.read_bytes(), rng))
        predict_file(load_model(folder() / "global.safetensors"), file).csv()


def _write(file: Path, x: np.ndarray, y: np.ndarray) -> None:
    if file.suffix == ".npy":
        np.save(file, x)
    elif file.suffix == ".npz":
        np.savez(file, x=x, y=y)
    else:
        known = {name: array for name, array in (("x", x), ("y", y)) if array.dtype.kind in "biuf"}
        safetensors.numpy.save_file(known, file)


CASES = (model_file, run_folder, samples)


def case(rng: random.Random) -> None:
    """A model file, a run folder, or samples to predict for."""
    rng.choice(CASES)(rng)


def main(cases: int, seed: int) -> int:
    """Carry out the campaign; return the number of failures."""
    import contextlib
    import io

    folder()
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet):
        failed = campaign("cards", case, cases, seed)
    print("\n".join(line for line in quiet.getvalue().splitlines() if line.startswith("cards:")))
    return failed
