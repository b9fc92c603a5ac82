"""`hansa.run(data=…, model=…, algorithm=…)`: the same runs as from plan files, recorded as what they are."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hansa
from hansa import task as tasks
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.cli import main
from hansa.data.partitions.label import Dirichlet
from hansa.data.sources.digits import Digits
from hansa.data.split import TestSplit as Cut
from hansa.errors import HansaError
from hansa.models import given
from hansa.models.dense import MLP
from hansa.training.local import LocalTraining

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (RNG.normal(size=(60, 4)) + np.eye(3, 4)[Y] * 2).astype(np.float32)
SITES = np.repeat(["north", "south", "west"], 20)
ONCE = FedAvg(LocalTraining(lr=0.1, batch_size=8))


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(given, "_HELD", {})
    yield
    for cached in (tasks._skeleton, tasks._initial, tasks._cost):
        cached.cache_clear()


def metrics(run: hansa.Run) -> dict[str, float]:
    return dict(run.summary["phases"][-1]["metrics"])


def clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {site: (X[site == SITES], Y[site == SITES]) for site in ("north", "south", "west")}


def test_every_form_of_the_same_data_is_the_same_run() -> None:
    """Arrays, clients and a data set of ours; and as a plan file says it."""
    arrays = hansa.run(data=(X, Y, SITES), algorithm=ONCE, rounds=2, out="arrays")
    by_client = hansa.run(data=clients(), algorithm=ONCE, rounds=2, out="clients")
    ours = hansa.run(data=hansa.dataset_from_arrays(X, Y, SITES), algorithm=ONCE, rounds=2, out="ours")
    np.savez("data.npz", x=X, y=Y, client=SITES)
    Path("plan.toml").write_text(
        'data = { source = { name = "npz", path = "data.npz" }, partition = "natural" }\n'
        '[[phases]]\nalgorithm = { name = "fedavg", local = { lr = 0.1, batch_size = 8 } }\nrounds = 2\n'
    )
    filed = hansa.run("plan.toml", out="filed")
    assert metrics(arrays) == metrics(by_client) == metrics(ours) == metrics(filed)
    assert arrays.data["digest"] == filed.data["digest"]
    assert [run.plan["data"]["source"]["form"] for run in (arrays, by_client, ours)] == [
        "arrays",
        "clients",
        "a data set",
    ]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_read_by_its_columns_and_predicted_for(library: str) -> None:
    frames = pytest.importorskip(library)
    table = {"a": X[:, 0], "b": X[:, 1], "sex": np.where(Y == 1, "f", "m"), "ill": np.array(["no", "yes", "so"])[Y]}
    frame = frames.DataFrame({**table, "site": SITES})
    run = hansa.run(data=frame, label="ill", client="site", algorithm=Fed3R(), out="run")
    source = run.plan["data"]["source"]
    assert source == {
        "name": "given",
        "form": "a frame",
        "label": "ill",
        "client": "site",
        "target": "classes",
        "scale": "unit",
    }
    assert run.data["clients"] == ["north", "south", "west"] and run.data["class_names"] == ["no", "so", "yes"]
    model = hansa.load_model(run)
    found = (model.predict(frame[["sex", "b", "a"]]) == np.asarray(frame["ill"])).mean()
    assert found > 0.7
    assert hansa.load_model(model.save("m.safetensors")).predict(frame).tolist() == model.predict(frame).tolist()
    with pytest.raises(hansa.HansaError, match="There is no column 'sex' in the frame"):
        model.predict(frame[["a", "b"]])


def test_clients_with_tests_of_their_own_are_tested_on_those() -> None:
    held = {name: (x[:15], y[:15], x[15:], y[15:]) for name, (x, y) in clients().items()}
    run = hansa.run(data=held, algorithm=Fed3R(), out="run")
    table = run.frame()
    assert isinstance(table, pandas.DataFrame)
    assert table["client"].tolist() == ["north", "south", "west"] and table["test_samples"].tolist() == [5, 5, 5]
    assert table["train_samples"].tolist() == [15, 15, 15]
    assert run.frame("rounds")["client_accuracy_weighted"].tolist() == [metrics(run)["client_accuracy_weighted"]]
    assert run.frame("ledger")["bytes_up"].sum() == run.summary["phases"][0]["bytes_up"]


def test_clients_of_unlike_inputs_are_a_federation() -> None:
    held = {
        name: (x[:15, : 2 + place], y[:15], x[15:, : 2 + place], y[15:])
        for place, (name, (x, y)) in enumerate(clients().items())
    }
    run = hansa.run(data=held, algorithm="local", out="run")
    assert run.status == "finished" and run.plan["data"]["source"]["form"] == "clients"
    with pytest.raises(hansa.HansaError, match="The clients are divided already, so there is no test to say"):
        hansa.run(data=held, algorithm="local", test=Cut("local"))


def test_a_module_takes_the_step_that_torch_takes() -> None:
    """One client, one batch: w − η ∂loss/∂w from the weights that the module was given with."""
    net, data = network(), {"one": (X, Y, X, Y)}
    before = copy.deepcopy(net.state_dict())
    run = hansa.run(data=data, model=net, algorithm=FedAvg(LocalTraining(lr=0.5, batch_size=60)), out="run")
    nn.functional.cross_entropy(net(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
    weights = hansa.load_model(run).weights
    for name, leaf in net.named_parameters():
        place = f"head.{name[2:]}" if name.startswith("2.") else f"features.{name}"
        assert leaf.grad is not None and torch.allclose(weights[place], leaf.detach() - 0.5 * leaf.grad, atol=1e-6)
    assert all(torch.equal(leaf, before[name]) for name, leaf in net.state_dict().items()), "the caller's was trained"
    assert (
        run.plan["model"]["path"] == "torch.nn.modules.container:Sequential" and run.plan["model"]["parameters"] == 43
    )


class Other(nn.Module):
    """A network whose last layer is not the last it names."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.body = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(x).relu())


def test_the_layer_that_gives_the_outputs_is_the_head() -> None:
    made = given.given_model(Other()).build((4,), 3)
    assert {name for name, _ in made.named_parameters()} >= {"head.weight", "features.body.weight"}
    alone = given.given_model(nn.Linear(4, 3)).build((4,), 3)
    assert [*dict(alone.named_parameters())] == ["head.weight", "head.bias"]
    with pytest.raises(hansa.HansaError, match="are not those of a layer; end it with one"):
        given.given_model(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))).build((4,), 3)


def test_a_run_given_objects_goes_on_with_the_same_objects_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(record: object) -> None:
        raise RuntimeError("no power")

    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "site": SITES})
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    told = {"data": frame, "label": "y", "client": "site", "model": net, "algorithm": FedAvgFT(LocalTraining(lr=0.1))}
    whole = hansa.run(**told, rounds=3, out="whole")
    with pytest.raises(RuntimeError, match="no power"):
        hansa.run(**told, rounds=3, out="run", watchers=[stop])
    given._HELD.clear()
    for cached in (tasks._skeleton, tasks._initial, tasks._cost):
        cached.cache_clear()
    monkeypatch.setattr("sys.argv", ["hansa", "resume", "run"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "given its data in Python, as a frame: go on there" in capsys.readouterr().err
    with pytest.raises(
        hansa.HansaError, match=r"given its model in Python, a 'torch\.nn\.modules\.container:Sequential'"
    ):
        hansa.resume("run", data=frame)
    with pytest.raises(hansa.HansaError, match="The data has changed since the run in 'run' began"):
        hansa.resume("run", data=frame.assign(a=0.0), model=net)
    done = hansa.resume("run", data=frame, model=net)
    assert metrics(done) == metrics(whole)
    mine, other = hansa.load_model(done, "west"), hansa.load_model("whole", "west", data=frame)
    assert all(torch.equal(leaf, other.weights[key]) for key, leaf in mine.weights.items())


def test_names_and_pieces_make_the_same_plan() -> None:
    said = {"data": "digits", "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.3}, "model": "mlp"}
    named = hansa.run(**said, algorithm="fedavg", rounds=1, metrics="f1", engine="serial", name="mine", out="a", seed=2)
    objects = hansa.run(
        data=Digits(), partition=Dirichlet(4, 0.3), model=MLP(), algorithm=[FedAvg()], metrics=["f1"], engine="serial",
        rounds=1, name="mine", out="b", seed=2,
    )  # fmt: skip
    assert named.plan_text == objects.plan_text and metrics(named) == metrics(objects)
    assert named.seed == 2 and "test_f1" in metrics(named)


def test_closed_forms_take_one_round_and_the_notation_says_its_own() -> None:
    two = hansa.run(data=(X, Y, SITES), algorithm=["fed3r", ONCE, hansa.PhasePlan(ONCE, rounds=3)], rounds=2, out="a")
    assert [phase["rounds"] for phase in two.plan["phases"]] == [1, 2, 3]
    line = hansa.run(data=(X, Y, SITES), algorithm="Fed3R + FedAvg-2", out="b")
    assert line.plan["phases"][-1]["rounds"] == 2 and line.status == "finished"


def test_data_beside_a_plan_are_on_record_as_given() -> None:
    run = hansa.run(
        "digits-fedavg", data=(X, Y, SITES), changes=["phases.0.rounds=1", "data.partition=natural"], out="r"
    )
    assert run.plan["data"]["source"]["name"] == "given" and run.data["clients"] == ["north", "south", "west"]


class Own(FedAvg):
    """An algorithm of a script."""


def test_an_object_of_ones_own_needs_no_trust_and_a_name_does() -> None:
    mine = importlib.import_module(Own.__module__).Own
    run = hansa.run(data=(X, Y, SITES), algorithm=mine(LocalTraining(lr=0.1)), out="run")
    assert run.environment["trusted"] == [f"{Own.__module__}:Own"]
    with pytest.raises(hansa.HansaError, match="is code outside the catalogue"):
        hansa.run(data=(X, Y, SITES), algorithm=f"{Own.__module__}:Own", out="other")


FRAME = pandas.DataFrame({"a": X[:, 0], "y": Y})
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "nothing": ({}, "A run without a plan needs the data to learn from: give data=…"),
    "no algorithm": ({"data": (X, Y, SITES)}, "needs an algorithm or a list of phases: give algorithm=…"),
    "no clients": ({"data": (X, Y), "algorithm": ONCE}, r"whose samples these are: give \(x, y, client\)"),
    "no client column": ({"data": FRAME, "label": "y", "algorithm": ONCE}, "give client='column', or divide them"),
    "no label": ({"data": FRAME, "algorithm": ONCE}, "A frame needs the name of its column of labels"),
    "odd label": ({"data": FRAME, "label": "yy", "algorithm": ONCE}, "no column 'yy' in the frame. Did you mean 'y'"),
    "only labels": ({"data": FRAME[["y"]], "label": "y", "algorithm": ONCE}, "nothing to learn from"),
    "label of arrays": ({"data": (X, Y), "label": "y", "algorithm": ONCE}, "and the data is no frame"),
    "clients of arrays": (
        {"data": (X, Y), "client": SITES, "algorithm": ONCE},
        r"part of the data: data=\(x, y, client\). Got ndarray",
    ),
    "odd data": ({"data": 3, "algorithm": ONCE}, r"The 'data' must be a frame, \(x, y\).* Got a int"),
    "odd client": ({"data": {"a": X}, "algorithm": ONCE}, "for tables give one frame.* Got a ndarray for 'a'"),
    "uneven": (
        {"data": {"a": (X, Y[1:]), "b": (X[1:], Y)}, "algorithm": ONCE},
        r"Client 'a' has inputs of shape \(60, 4\) and labels of shape \(59,\)",
    ),
    "a class": ({"data": (X, Y, SITES), "algorithm": FedAvg}, r"Got the class FedAvg: write FedAvg\(…\)"),
    "odd algorithm": ({"data": (X, Y, SITES), "algorithm": 3}, "'algorithm' must be a name, .* or an object. Got 3"),
    "no phases": ({"data": (X, Y, SITES), "algorithm": []}, "The list of phases is empty"),
    "rounds": ({"data": (X, Y, SITES), "algorithm": ONCE, "rounds": 0}, "'rounds' of a phase must be a whole number"),
    "rounds twice": ({"data": (X, Y, SITES), "algorithm": "Fed3R + FP", "rounds": 2}, "stand in the notation"),
    "changes": ({"data": (X, Y, SITES), "algorithm": ONCE, "changes": ["seed=2"]}, "are of a plan, and there is none"),
    "a plan's": ({"plan": "digits-fedavg", "rounds": 3}, "The plan says its own rounds"),
    "outputs": ({"data": (X, Y, SITES), "algorithm": ONCE, "model": nn.Linear(4, 2)}, "must give 3 outputs a sample"),
    "inputs": ({"data": (X, Y, SITES), "algorithm": ONCE, "model": nn.Linear(5, 3)}, "cannot read samples of shape"),
    "engine": (
        {"data": (X, Y, SITES), "algorithm": ONCE, "model": nn.Linear(4, 3), "engine": "processes"},
        "an object of this Python process, which the engine Processes cannot send: use 'vectorised'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_told_and_nothing_is_written(case: str) -> None:
    settings, says = WRONG[case]
    with pytest.raises(hansa.HansaError, match=says) as caught:
        hansa.run(**settings, out="run")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and not Path("run").exists()


def test_a_run_and_a_model_are_shown_in_short() -> None:
    held = {f"<{name}>": arrays for name, arrays in clients().items()}
    run = hansa.run(data=held, model=network(), algorithm=ONCE, rounds=2, name="mine", out="run")
    page, model = run._repr_html_(), hansa.load_model(run)
    assert "mine" in page and "Test accuracy" in page and "&lt;north&gt;" in page and "finished" in page
    assert "43 numbers in 4 leaves" in model._repr_html_() and len(repr(model)) < 100


def test_a_notebook_shows_how_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    display, shown = pytest.importorskip("IPython.display"), list[str]()

    def draw(drawn: object, display_id: bool) -> object:
        shown.append(drawn.data)  # type: ignore[attr-defined]
        return SimpleNamespace(update=lambda later: shown.append(later.data))

    monkeypatch.setattr(display, "display", draw)
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=object()))
    hansa.run(data=clients(), algorithm=ONCE, rounds=2, out="run")
    assert "fedavg: 1 of 2 rounds" in shown[0] and "fedavg: 2 of 2 rounds" in shown[-1] and "<progress" in shown[-1]


def test_arrays_may_be_scaled_by_sums_over_the_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 240)
    x = (rng.normal(size=(240, 4)) + 3 * np.eye(3, 4)[y]) * [1.0, 1e2, 1e4, 1e6]
    arrays, settings = (x, y, np.repeat(["a", "b", "c"], 80)), {"algorithm": "fedavg", "rounds": 5}
    bare = hansa.run(data=arrays, **settings, out=tmp_path / "bare")
    scaled = hansa.run(data=arrays, scale="standard", **settings, out=tmp_path / "scaled")
    assert scaled.summary["phases"][0]["metrics"]["test_accuracy"] > 0.8
    assert bare.summary["phases"][0]["metrics"].get("test_accuracy", 0.0) < 0.8
    assert (hansa.load_model(scaled).predict(x).astype(int) == y).mean() > 0.8  # which scales what it is given
    again = hansa.resume(scaled.path, data=arrays)
    assert again.summary == scaled.summary


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"data": "digits"}, "This data says its own scale: leave out scale='standard'."),
        ({"data": {"a": (X, Y), "b": (X[:, :2], Y)}}, "Clients whose inputs differ share no scale"),
        ({"data": (X, Y, SITES), "scale": "big"}, "The 'scale' of arrays must be one of unit, standard. Got 'big'."),
    ],
)
def test_a_scale_that_has_no_place_is_refused(told: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(HansaError, match=re.escape(said)):
        hansa.run(**{"scale": "standard", **told}, algorithm="fedavg", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_windows_of_several_channels_are_refused_with_what_to_do(tmp_path: Path) -> None:
    windows = np.zeros((30, 5, 3), np.float32)
    with pytest.raises(HansaError, match=re.escape("Got float32 of shape 30×5×3: flatten windows or volumes")):
        hansa.run(data=(windows, np.arange(30) % 2, np.repeat(["a", "b"], 15)), algorithm="fedavg", out=tmp_path / "r")
