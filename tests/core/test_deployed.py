"""A loaded model predicts exactly what the last phase of its run does, from the folder and from a file of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hansa
from hansa import api
from hansa.data.sources.digits import Digits
from hansa.deploy.model import load_model
from hansa.errors import HansaError
from hansa.io.store import DiskStore, checkpoint_of
from hansa.plan.assemble import assemble
from hansa.plan.files import read_plan
from hansa.results.reader import Run
from hansa.running.phase_run import PhaseRun, restore

PLAN = """
seed = 3
model = { name = "mlp", hidden = [8] }
[data]
source = "digits"
partition = { name = "dirichlet", clients = 6, alpha = 0.3 }
test = { kind = "both" }
"""
FEW = 'orchestration = { name = "star", clients = 2 }\nrounds = 2\n'
FED3R = '[[phases]]\nalgorithm = "fed3r"\n'
PHASES = {
    "global": f'[[phases]]\nalgorithm = "fedavg"\n{FEW}temperature = 2.0\n',
    "closed form": FED3R,
    "kept head": f'[[phases]]\nalgorithm = "fedper"\n{FEW}',
    "adapted": f'[[phases]]\nalgorithm = "fedavg-ft"\n{FEW}',
    "own model": f'{FED3R}[[phases]]\nalgorithm = "local"\n{FEW}',
    "own labels": f'{FED3R}oll = true\n[[phases]]\nalgorithm = "local"\n{FEW}',
}
PERSONAL = tuple(name for name in PHASES if name not in ("global", "closed form"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for name, phases in PHASES.items():
        folder = root / name.replace(" ", "-")
        (root / "plan.toml").write_text(PLAN + phases)
        found[name] = api.run(root / "plan.toml", out=folder).path
    return found


def last_phase(run: Path) -> PhaseRun:
    experiment = assemble(read_plan(run / "plan.toml")).experiment
    store = DiskStore(checkpoint_of(run), read_only=True)
    return restore(experiment, store, len(experiment.phases) - 1)


def some_digits(count: int = 40) -> torch.Tensor:
    return torch.from_numpy(Digits().load().test.x[:count])


@pytest.mark.parametrize("name", PHASES)
def test_every_client_deploys_what_the_run_ended_with(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    run, x = last_phase(runs[name]), some_digits()
    visited = set(run.store.clients(f"{run.index}/client"))
    chosen = [*run.names[:2], *[client for client in run.names if client not in visited][:2]]
    if name in ("kept head", "own model", "own labels"):
        assert set(chosen) - visited, "a client that was never visited must be among them"
    for client in chosen:
        expected = run.algorithm.outputs(*run.deployed(client), x)
        model = load_model(runs[name], client)
        assert torch.equal(model.outputs(x), expected)
        saved = load_model(model.save(tmp_path / f"{client}.safetensors"))
        assert torch.equal(saved.outputs(x), expected)
        assert saved.card == model.card


@pytest.mark.parametrize("name", PHASES)
def test_predictions_are_what_the_run_was_evaluated_by(runs: dict[str, Path], name: str) -> None:
    folder, run = Run.open(runs[name]), last_phase(runs[name])
    table = folder.clients().to_pylist()
    last = {row["client"]: row for row in table if row["phase"] == run.index and row["round"] == run.phase.rounds}
    assert len(last) >= 4
    for client, row in last.items():
        test = run.federation.clients[client].test
        chosen = load_model(folder, client).predict(test.x)
        assert sum(int(name) == label for name, label in zip(chosen, test.y.tolist(), strict=True)) == row["correct"]


@pytest.mark.parametrize("name", ["global", "closed form"])
def test_without_a_client_it_is_the_global_model(runs: dict[str, Path], name: str) -> None:
    run, x = last_phase(runs[name]), some_digits()
    weights = run.algorithm.model(run.task, run.server)
    expected = run.algorithm.outputs(run.task, weights, x)
    model = hansa.load_model(runs[name])
    assert torch.equal(model.outputs(x), expected)
    assert np.allclose(model.probabilities(x), expected.softmax(1).numpy())
    assert model.predict(x).tolist() == [model.class_names[place] for place in expected.argmax(1)]
    assert model.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", PERSONAL)
def test_models_of_their_own_need_a_name(runs: dict[str, Path], name: str) -> None:
    with pytest.raises(HansaError, match=r"every client of .* has a model of its own: name one with --client"):
        load_model(runs[name])


def test_only_local_labels_have_any_probability(runs: dict[str, Path], tmp_path: Path) -> None:
    run = last_phase(runs["own labels"])
    client = min(run.names, key=lambda name: len(run.federation.clients[name].train.y.unique()))
    held = set(run.federation.clients[client].train.y.tolist())
    assert len(held) < 10
    model = load_model(load_model(runs["own labels"], client).save(tmp_path / "m.safetensors"))
    chances = model.probabilities(some_digits())
    assert set(np.flatnonzero(chances.sum(0))) == held
    assert np.allclose(chances.sum(1), 1)
    assert model.card.labels == tuple(sorted(held))


def test_a_model_file_needs_neither_run_nor_data(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["kept head"], copy)
    model = load_model(copy, "client-000")
    file, expected = model.save(tmp_path / "m.safetensors"), model.outputs(some_digits())
    shutil.rmtree(copy)
    assert torch.equal(load_model(file).outputs(some_digits()), expected)
    assert load_model(file, "client-000").card.client == "client-000"
    with pytest.raises(HansaError, match="holds the model of client 'client-000', not that of client 'client-001'"):
        load_model(file, "client-001")


def test_unknown_clients_and_unfinished_runs_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=r"has no client 'client-01'\. Did you mean 'client-001'\?"):
        load_model(runs["global"], "client-01")
    copy = tmp_path / "run"
    shutil.copytree(runs["global"], copy)
    (copy / "summary.json").write_text('{"status": "interrupted"}')
    with pytest.raises(HansaError, match=f"is not finished: continue it with 'hansa resume {copy}' first"):
        load_model(copy)
    with pytest.raises(HansaError, match="does not exist"):
        load_model(tmp_path / "nothing")


def test_data_that_has_changed_is_noticed(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["kept head"], copy)
    text = (copy / "plan.toml").read_text()
    (copy / "plan.toml").write_text(text.replace("alpha = 0.3", "alpha = 0.4"))
    with pytest.raises(HansaError, match="The data has changed since the run"):
        load_model(copy, "client-000")


def test_a_run_on_objects_is_given_the_same_objects(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = {
        name: (rng.normal(size=(20, 5)), np.arange(20) % 2, rng.normal(size=(4, 5)), [0, 1, 0, 1]) for name in "ab"
    }
    federation = hansa.federation_from_clients(clients)
    (tmp_path / "plan.toml").write_text(PLAN + PHASES["kept head"])
    run = hansa.run(tmp_path / "plan.toml", out=tmp_path / "run", data=federation)
    with pytest.raises(HansaError, match="was given its data in Python, as a federation"):
        load_model(run.path, "a")
    other = hansa.federation_from_clients({**clients, "b": clients["a"]})
    with pytest.raises(HansaError, match="The data has changed"):
        load_model(run.path, "a", data=other)
    for known in (load_model(run, "a"), load_model(run.path, "a", data=federation)):
        assert known.probabilities(clients["a"][0]).shape == (20, 2)


def test_a_foreign_or_damaged_file_is_no_model(runs: dict[str, Path], tmp_path: Path) -> None:
    file = load_model(runs["global"]).save(tmp_path / "m.safetensors")
    content = file.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:-10])
    with pytest.raises(HansaError, match="cut off, damaged or foreign"):
        load_model(tmp_path / "cut.safetensors")
    save_file({"head.weight": torch.zeros(2, 2)}, tmp_path / "bare.safetensors")
    with pytest.raises(HansaError, match="holds weights alone; 'hansa save' writes files that can predict"):
        load_model(tmp_path / "bare.safetensors")
    fewer = content.replace(b'\\"hidden\\": [8]', b'\\"hidden\\": [7]')
    (tmp_path / "fewer.safetensors").write_bytes(fewer)
    with pytest.raises(HansaError, match="are not those of the model it names"):
        load_model(tmp_path / "fewer.safetensors")
    newer = content.replace(b'\\"format\\": 2', b'\\"format\\": 9')
    (tmp_path / "newer.safetensors").write_bytes(newer)
    with pytest.raises(HansaError, match="format 9, newer than 2"):
        load_model(tmp_path / "newer.safetensors")
    older = content.replace(b'\\"format\\": 2', b'\\"format\\": 1')
    (tmp_path / "older.safetensors").write_bytes(older)
    with pytest.raises(HansaError, match="format 1, older than 2: save it again"):
        load_model(tmp_path / "older.safetensors")
    with pytest.raises(HansaError, match=r"must be named '….safetensors'. Got 'm.pkl'"):
        load_model(runs["global"]).save("m.pkl")


def test_tokens_are_read_as_numbers_and_unknown_ones_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "t.npz", x=rng.integers(0, 5, (40, 6)), y=np.arange(40) % 5)
    source = '{ name = "npz", path = "t.npz", tokens = true }'
    plan = PLAN.replace('"digits"', source).replace("clients = 6, alpha = 0.3", "clients = 2, alpha = 9.0")
    plan = plan.replace('{ name = "mlp", hidden = [8] }', '{ name = "char-lstm", hidden = 4 }')
    (tmp_path / "plan.toml").write_text(plan + PHASES["global"])
    model = load_model(api.run(tmp_path / "plan.toml", out=tmp_path / "run"))
    assert len(model.predict(np.zeros((3, 6), int))) == 3
    with pytest.raises(HansaError, match="a token number that the model does not know"):
        model.predict(np.full((3, 6), 999))


def test_wrong_shapes_are_told(runs: dict[str, Path]) -> None:
    model = load_model(runs["global"])
    for x, says in (
        (torch.zeros(3, 5), r"reads samples of shape 64\. Got 3×5"),
        (np.zeros((3, 5), np.float32), r"reads samples of shape 64\. Got 3×5"),
        (np.zeros(64), "must be n × features"),
        (np.full((2, 64), np.nan, np.float32), "a NaN or Inf"),
        (np.array(["a text"]), "the samples are text"),
        (np.zeros((0, 64), np.float32), "Got 0×64"),
    ):
        with pytest.raises(HansaError, match=says):
            model.predict(x)


def test_a_model_whose_leaves_are_not_the_networks_can_be_saved_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN + f'[[phases]]\nalgorithm = "own_prototypes:ClassMeans"\n{FEW}')
    run = api.run(tmp_path / "plan.toml", out=tmp_path / "run", trust=["own_prototypes.*"])
    assert run.environment["trusted"] == ["own_prototypes:ClassMeans"]
    model = load_model(run, trust=True)
    assert list(model.weights) == ["prototypes"]
    saved = load_model(model.save(tmp_path / "model.safetensors"), trust=["own_prototypes:ClassMeans"])
    x = Digits().load().test.x  # type: ignore[union-attr]
    assert np.array_equal(saved.predict(x), model.predict(x))
    held = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(held.replace(b'"shape":[10,64]', b'"shape":[64,10]'))
    with pytest.raises(HansaError, match="are not those of the model it names"):
        load_model(tmp_path / "model.safetensors", trust=True)
