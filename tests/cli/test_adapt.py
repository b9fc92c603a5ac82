"""A client that joins later learns its own part by itself: the run stays as it was, and the model predicts."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import hansa
from hansa.cli.commands import app
from hansa.data.sources.digits import Digits
from hansa.deploy.model import opened_store
from hansa.deploy.restored import last_phase
from hansa.errors import HansaError
from hansa.io.registry import CATALOGUE, find
from hansa.io.trust import NOBODY
from hansa.seeds import generator, seed_for
from hansa.tree import equal

DIVIDED = ["data.test.kind=local", "data.partition={name='dirichlet', clients=8, alpha=0.5}"]
LOCAL = "local={lr=0.1, epochs=3, batch_size=8}"
PERSONAL = {
    "personal": f"{{name='personal', inner={{name='fedavg', {LOCAL}}}}}",
    "fedrep": f"{{name='fedrep', head_epochs=3, {LOCAL}}}",
    "local": f"{{name='local', {LOCAL}}}",
    "ditto": f"{{name='ditto', {LOCAL}}}",
    "fedavg-ft": f"{{name='fedavg-ft', tune={{lr=0.1, epochs=5, batch_size=8}}, {LOCAL}}}",
}


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of three classes, to learn from and to be tested on."""
    folder, test = tmp_path_factory.mktemp("newcomer"), Digits().load().test
    assert test is not None
    own = np.flatnonzero(test.y < 3)
    np.savez(folder / "new.npz", x=test.x[own[:40]], y=test.y[own[:40]])
    np.savez(folder / "later.npz", x=test.x[own[40:]], y=test.y[own[40:]])
    return folder


def run_of(folder: Path, *changes: str, name: str = "digits-fedavg") -> hansa.Run:
    return hansa.run(name, out=folder, changes=[*DIVIDED, *changes])


@pytest.fixture(scope="module")
def fedrep(tmp_path_factory: pytest.TempPathFactory) -> hansa.Run:
    folder = tmp_path_factory.mktemp("fedrep") / "run"
    return run_of(folder, f"phases.0.algorithm={PERSONAL['fedrep']}", "phases.0.rounds=3")


def contents(folder: Path) -> dict[str, str]:
    return {str(file): sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*")) if file.is_file()}


def accuracy(model: Any, file: Path) -> float:
    with np.load(file) as held:
        return float((model.predict(held["x"]) == held["y"].astype(str)).mean())


@pytest.mark.parametrize("name", PERSONAL)
def test_a_newcomer_learns_its_own_part_and_touches_nothing(tmp_path: Path, newcomer: Path, name: str) -> None:
    run = run_of(tmp_path / "run", f"phases.0.algorithm={PERSONAL[name]}", "phases.0.rounds=2")
    before = contents(run.path)
    model = hansa.adapt(run, newcomer / "new.npz", "harbour", rounds=4)
    again = hansa.adapt(run.path, newcomer / "new.npz", "harbour", rounds=4)
    assert equal(model.weights, again.weights) and contents(run.path) == before
    assert model.card.client == "harbour" and accuracy(model, newcomer / "later.npz") > 0.85
    loaded = hansa.load_model(model.save(tmp_path / "harbour.safetensors"))
    assert equal(loaded.weights, model.weights)


HIDDEN = "{name='latent', encoder={name='mlp', hidden=[8]}, width=4, hidden=6}"
MODELS = {"flic-hl": HIDDEN, "hetfedrep": HIDDEN, "flic-s3": "linear"}
NAMES = [name for name in CATALOGUE["algorithm"] if name != "checkpoint" and find("algorithm", name)().personal]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PERSONAL])
def test_every_algorithm_with_models_of_clients_own_takes_a_newcomer(tmp_path: Path, newcomer: Path, name: str) -> None:
    few, model_of = "data.partition={name='iid', clients=2}", MODELS.get(name, "adapter")  # a layer for FedBN to keep
    run = run_of(tmp_path / "run", f"phases.0.algorithm={name}", "phases.0.rounds=1", few, f"model={model_of}")
    model = hansa.adapt(run, newcomer / "new.npz", "harbour", rounds=2)
    assert set(model.predict(np.eye(64, dtype=np.float32))) <= set(model.class_names)
    assert not bool(model.outputs(np.eye(64, dtype=np.float32)).isnan().any())


def test_the_visits_are_those_of_the_algorithm_with_uploads_thrown_away(fedrep: hansa.Run, newcomer: Path) -> None:
    """By hand: three calls of `client_step` on what the server broadcasts, and `deploy`."""
    with np.load(newcomer / "new.npz") as held:
        data = hansa.ClientData(torch.from_numpy(held["x"]).float(), torch.from_numpy(held["y"]))
    with opened_store(fedrep) as store:
        last = last_phase(fedrep, store, NOBODY)
        algorithm, state, seed = last.algorithm, last.algorithm.client_init(last.task, data), last.experiment.seed
        for number in range(3):
            task = replace(last.task, round=number, rounds=3)
            down = algorithm.broadcast(task, last.server, torch.Generator())
            rng = torch.Generator().manual_seed(seed_for(seed, "adapt", 0, "harbour", number))
            _, state = algorithm.client_step(task, down, state, data, rng)
        by_hand = algorithm.deploy(last.task, last.served(), state, data, generator(0))
        shared = algorithm.model(last.task, last.server)
    model = hansa.adapt(fedrep, data, "harbour", rounds=3)
    assert equal(model.weights, by_hand)
    assert all(torch.equal(model.weights[key], shared[key]) for key in shared if key.startswith("features."))
    assert not torch.equal(model.weights["head.weight"], shared["head.weight"])
    assert equal(hansa.adapt(fedrep, newcomer / "new.npz", "harbour", rounds=3).weights, by_hand)


def test_only_local_labels_are_the_newcomers_classes(tmp_path: Path, newcomer: Path) -> None:
    run = run_of(tmp_path / "run", "phases.0.oll=true", name="digits-fed3r")
    model = hansa.adapt(run, newcomer / "new.npz", "harbour")
    assert model.card.labels == (0, 1, 2)
    assert accuracy(model, newcomer / "later.npz") > 0.9 and set(model.predict(np.eye(64))) <= {"0", "1", "2"}


def test_a_newcomer_goes_through_all_phases(tmp_path: Path, newcomer: Path) -> None:
    phases = f"[{{algorithm={{name='fedavg', {LOCAL}}}, rounds=2}}, {{algorithm={PERSONAL['local']}, rounds=2}}]"
    run = run_of(tmp_path / "run", f"phases={phases}")
    model = hansa.adapt(run, newcomer / "new.npz", "harbour", rounds=1)
    with opened_store(run) as store:
        last = last_phase(run, store, NOBODY)
        assert last.previous is not None
        start = last.previous.learnt()
    near = sum(float((model.weights[key] - start[key]).norm()) for key in start)
    far = sum(float((model.weights[key] - leaf).norm()) for key, leaf in last.experiment.task.params().items())
    assert 0 < near < far  # it started from what the first phase learnt


def clients_of(widths: dict[str, int]) -> hansa.Federation:
    rng, found = np.random.default_rng(0), {}
    for name, width in widths.items():
        x, y = rng.normal(size=(40, width)), np.arange(40) % 2
        x[:, 0] += 3 * y
        found[name] = (x[:30], y[:30], x[30:], y[30:])
    return hansa.federation_from_clients(found)


def test_another_width_needs_an_encoder_of_ones_own(tmp_path: Path) -> None:
    changes = ["model={name='mlp', hidden=[8]}", "phases.0.rounds=3"]
    own = "phases.0.algorithm={name='personal', keep='features', inner={name='fedavg', local={lr=0.1, epochs=5}}}"
    run = hansa.run("digits-fedavg", out=tmp_path / "run", changes=[*changes, own], data=clients_of({"a": 6, "b": 4}))
    held = clients_of({"new": 3}).clients["new"]
    assert held.test is not None
    np.savez(tmp_path / "new.npz", x=held.train.x.numpy(), y=held.train.y.numpy())
    model = hansa.adapt(run, tmp_path / "new.npz", "harbour")
    assert model.card.input_shape == (3,)
    assert float((model.predict(held.test.x).astype(int) == held.test.y.numpy()).mean()) > 0.8
    shared = [*changes, f"phases.0.algorithm={PERSONAL['fedrep']}"]
    other = hansa.run("digits-fedavg", out=tmp_path / "other", changes=shared, data=clients_of({"a": 6, "b": 6}))
    with pytest.raises(
        HansaError, match=r"have the shape 3, and those of the run 6\. The shared 'features\.1\.weight'"
    ):
        hansa.adapt(other, tmp_path / "new.npz", "harbour")


def test_a_table_from_the_command_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def table(name: str, rows: int) -> None:
        values = rng.normal(size=(rows, 2))
        lines = [f"{a},{b},{'yes' if a + b > 0 else 'no'}" for a, b in values]
        (tmp_path / f"{name}.csv").write_text("\n".join(["height,width,ill", *lines]) + "\n")

    for name in ("north", "south", "east", "later"):
        table(name, 60)
    source = f"{{name='csv', path=['{tmp_path}/north.csv', '{tmp_path}/south.csv'], label='ill'}}"
    data = f"data={{source={source}, partition='natural', test={{kind='local'}}}}"
    changes = [data, f"phases.0.algorithm={PERSONAL['personal']}", "phases.0.rounds=4"]
    hansa.run("digits-fedavg", out=tmp_path / "run", changes=changes)
    call = ["adapt", str(tmp_path / "run"), "--client", "east", "--data"]
    out = ["--out", str(tmp_path / "east.safetensors"), "--rounds", "5"]
    done = CliRunner().invoke(app, [*call, str(tmp_path / "east.csv"), *out])
    assert done.exit_code == 0 and "nothing was sent" in done.output
    told = CliRunner().invoke(app, ["predict", str(tmp_path / "east.safetensors"), str(tmp_path / "later.csv")])
    assert float(told.output.rpartition("Accuracy: ")[2].partition("%")[0]) > 85
    (tmp_path / "odd.csv").write_text("height,width,ill\n1,2,perhaps\n")
    (tmp_path / "short.csv").write_text("height,ill\n1,yes\n")
    (tmp_path / "blind.csv").write_text("height,width\n1,2\n")
    for file, says in (("odd", "the label 'perhaps'"), ("short", "'width'"), ("blind", "has no labels")):
        with pytest.raises(HansaError, match=says):
            hansa.adapt(tmp_path / "run", tmp_path / f"{file}.csv", "east")


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path, fedrep: hansa.Run, newcomer: Path) -> None:
    file, known = newcomer / "new.npz", fedrep.data["clients"][0]
    with pytest.raises(HansaError, match=f"has a client '{known}' already: use 'hansa save"):
        hansa.adapt(fedrep, file, known)
    with pytest.raises(HansaError, match=r"must be a whole number ≥ 1\. Got 0"):
        hansa.adapt(fedrep, file, "harbour", rounds=0)
    with pytest.raises(HansaError, match="does not exist"):
        hansa.adapt(fedrep, tmp_path / "none.npz", "harbour")
    np.savez(tmp_path / "odd.npz", x=np.zeros((2, 64)), y=np.asarray([0, 11]))
    with pytest.raises(HansaError, match="the label '11' for sample 1, which is no class of the model"):
        hansa.adapt(fedrep, tmp_path / "odd.npz", "harbour")
    one = hansa.run("digits-fed3r", out=tmp_path / "one")
    with pytest.raises(HansaError, match="so a new one uses the global model as it is: 'hansa save"):
        hansa.adapt(one, file, "harbour")
