"""Exhibits: what an algorithm shows reaches the run folder on every engine, survives a stop, and is drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_exhibits import Latent, Uneven, class_means, only
from run_folders import write_run

import hansa
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.flic import Alignment
from hansa.algorithms.flic_class import FlicClass
from hansa.algorithms.personal import Personal
from hansa.algorithms.private import Private
from hansa.algorithms.wima import Wima
from hansa.contract import Algorithm
from hansa.data.partitions.label import Dirichlet, Iid
from hansa.data.sources.digits import Digits
from hansa.data.split import TestSplit
from hansa.deploy.forget import forget
from hansa.engines.auto import Auto
from hansa.engines.carriers import Loopback
from hansa.engines.flower import Flower
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.errors import HansaError
from hansa.features.module import FrozenModule
from hansa.metrics.exhibits import Exhibit, neighbour_plane, packed, principal_plane, unpacked
from hansa.models.dense import MLP
from hansa.plan.schema import DataPlan, PhasePlan, Plan
from hansa.results.exhibits import phase_exhibits
from hansa.results.reader import Run
from hansa.results.report import build
from hansa.training.local import LocalTraining

ROUNDS = 3
ENGINES = {"serial": Serial(), "processes": Processes(workers=1)}
FEATURES = tuple(FrozenModule("torch.nn:Linear", {"in_features": 64, "out_features": width}) for width in (3, 5))


def plan_of(algorithm: Algorithm | None = None, **changes: Any) -> Plan:
    latent = Latent(Personal(FedAvg(LocalTraining(lr=0.1, epochs=1, batch_size=32))))
    data = DataPlan(Digits(), Iid(3), TestSplit("local", train_per_class=9), features=FEATURES)
    plan = Plan(data, (PhasePlan(algorithm or latent, ROUNDS, "latent", temperature=1.0),), MLP((4,)), name="shown")
    return replace(plan, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return hansa.run(plan_of(), out=tmp_path_factory.mktemp("exhibits") / "run")


def test_the_folder_keeps_curves_of_all_rounds_and_pictures_of_the_first_and_the_last(run: Run) -> None:
    (phase,) = run.exhibits["phases"]
    told = [(one["title"], one["kind"], one["round"]) for one in phase["exhibits"]]
    assert phase["phase_name"] == "latent" and told == [
        ("distance to the class means", "curve", [1, 2, 3]),
        ("class means", "scatter", 1),
        ("class means", "scatter", 3),
        ("what each backbone adds", "heat map", 1),
        ("what each backbone adds", "heat map", 3),
    ]
    spread = phase["exhibits"][0]["columns"]
    assert list(spread) == run.data["clients"] and all(len(values) == 3 for values in spread.values())
    first, last = (one["columns"] for one in phase["exhibits"][1:3])
    assert len(last["PC 1"]) == 30 and last["PC 1"] != first["PC 1"] and set(last["name"]) == set(spread)


def test_what_is_shown_is_what_clients_deploy(run: Run) -> None:
    """By hand from the saved models, in NumPy's float64."""
    from hansa.plan.assemble import assemble

    clients = assemble(plan_of()).experiment.federation.clients
    shown = run.exhibits["phases"][0]["exhibits"]
    columns, found = {"first": slice(0, 3), "second": slice(3, 8)}, []
    for name, client in clients.items():
        model = hansa.load_model(run, name, trust=True)
        weight, bias = (model.weights[f"features.1.{key}"].double() for key in ("weight", "bias"))

        def latent(x: torch.Tensor, weight: torch.Tensor = weight, bias: torch.Tensor = bias) -> torch.Tensor:
            return (x.double() @ weight.T + bias).clamp(min=0)

        x, y = client.train.x, client.train.y
        means = class_means(latent(x), y, 10)
        spread = float(((latent(x) - means[y]) ** 2).sum(1).mean())
        assert shown[0]["columns"][name][-1] == pytest.approx(spread, rel=1e-4)
        single = [class_means(latent(only(x, span)), y, 10) for span in columns.values()]
        found.append(torch.stack([torch.cosine_similarity(means, one, dim=1) for one in single], dim=1))
    by_hand = torch.stack(found).nanmean(0)
    names = [name for name, _ in run.data["task"]["spans"]]
    heat = np.stack([shown[-1]["columns"][name] for name in names], axis=1)
    np.testing.assert_allclose(heat, by_hand, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_show_the_same_and_count_what_was_told(run: Run, tmp_path: Path, engine: str) -> None:
    other = hansa.run(plan_of(engine=ENGINES[engine]), out=tmp_path / "run")
    ours, theirs = (json.dumps(one.exhibits, sort_keys=True) for one in (run, other))
    same = [np.asarray(_numbers(json.loads(text))) for text in (ours, theirs)]
    np.testing.assert_allclose(*same, atol=2e-4)
    quiet = hansa.run(plan_of(Personal(FedAvg(LocalTraining(lr=0.1, batch_size=32)))), out=tmp_path / "quiet")
    assert quiet.exhibits == {} and not (quiet.path / "exhibits.json").exists()
    observed = 3 * 4 * (10 * 4 + 1 + 10 * 2)  # three clients, float32
    for ours_, silent in zip(run.rounds, quiet.rounds, strict=True):
        assert ours_["bytes_evaluate"] - silent["bytes_evaluate"] == observed
        assert ours_["metrics"] == silent["metrics"]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for key in value for one in _numbers(value[key])]
    if isinstance(value, list):
        return [one for part in value for one in _numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []


def test_a_resumed_run_shows_the_same(run: Run, tmp_path: Path) -> None:
    import signal

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    half = hansa.run(plan_of(), out=tmp_path / "run", watchers=[stop])
    assert half.status == "interrupted" and half.exhibits["phases"][0]["exhibits"][0]["round"] == [1, 2]
    assert hansa.resume(tmp_path / "run", trust=True).exhibits == run.exhibits


def test_pictures_are_those_of_the_round_that_was_deployed() -> None:
    stored = {
        f"0/exhibits/{k}": {"exhibits": packed([Exhibit("dots", "scatter", {"x": [k], "y": [0]})])} for k in (1, 2, 3)
    }
    records = [{"phase": 0, "phase_name": "p", "round": k, "metrics": {"test_accuracy": 0.5}} for k in (1, 2, 3)]
    chosen = [*records[:2], {**records[2], "deployed": 2}]
    shown = [[one["round"] for one in phase_exhibits(told, stored.get)["exhibits"]] for told in (records, chosen)]
    assert shown == [[1, 3], [1, 2]]


def test_the_report_draws_them(run: Run, tmp_path: Path) -> None:
    page = build([run.path], tmp_path / "report.html").read_text()
    assert "What the algorithms show" in page and page.count("latent, class means, round") >= 2
    assert page.count('class="end"') > 2 * 30 and "30 points, PC 1 across and PC 2 up, in 10 groups" in page
    assert page.count('class="begins"') >= 2 * 3 * 2  # of classes 8 and 9, whose colours come a second time
    assert (
        "latent, what each backbone adds, round 3" in page
        and "Cosine similarity. The stronger a shade" in page
        and "(out_features 5)" in page
    )
    assert f"{run.data['clients'][0]} ends at" in page
    two = build([run.path, run.path], tmp_path / "two.html").read_text()
    assert "shown, 2: latent, class means, round 3" in two


def test_one_number_is_no_curve(tmp_path: Path) -> None:
    hansa.run("digits-fed3r", out=tmp_path / "run")
    page = build([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    card = page[page.index("ridge λ") :].split("</figure>")[0]
    assert 'class="value"' in card and "<svg" not in card and "Round 1." in card


def test_classes_have_their_names_and_three_columns_a_row_of_their_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    data = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**data, "class_names": ["bike", "1", *data["class_names"][2:]]}))
    cells = {name: [0.1, 0.2, 0.3] for name in ("one", "two", "three")}
    rows = {"class": ["class 0", "class 1", "class 999"]}
    shown = [
        {**Exhibit("three columns", "heat map", {**rows, **cells}).table(), "round": 1},
        {**Exhibit("two columns", "heat map", {**rows, "one": cells["one"], "two": cells["two"]}).table(), "round": 1},
    ]
    told = {"phases": [{"phase": 0, "phase_name": "p", "exhibits": shown}]}
    (folder / "exhibits.json").write_text(json.dumps(told))
    page = build([folder], tmp_path / "report.html").read_text()
    three, two = (page[page.index(f">p, {name} columns") - 60 :][:3000] for name in ("three", "two"))
    assert 'class="card row"' in three[:60] and 'class="card row"' not in two[:60]
    for name in ("bike", "class 1", "class 999"):
        assert f'<th scope="row">{name}</th>' in three
    assert '<th scope="row">class 0</th>' not in page


def test_long_tables_are_cut_and_odd_numbers_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    lines = {f"line {k}": [float(k), None] for k in range(20)}
    many = {f"column {k}": [float(k + row) for row in range(100)] for k in range(40)}
    shown: list[dict[str, Any]] = [
        {"title": "lines", "kind": "curve", "columns": lines, "note": "", "round": [1, 2]},
        {"title": "nothing", "kind": "curve", "columns": {"a": [None]}, "note": "", "round": [1]},
        {**Exhibit("<b>", "heat map", {"row": [str(k) for k in range(100)], **many}).table(), "round": 1},
        {**Exhibit("dots", "scatter", {"x": list(range(3000)), "y": [1.0] * 3000}).table(), "round": 1},
        {**Exhibit("gone", "scatter", {"x": [float("nan")], "y": [1.0]}).table(), "round": 1},
        {**Exhibit("flat", "heat map", {"row": ["a"], "b": [float("inf")]}).table(), "round": 1},
    ]
    told = {"phases": [{"phase": 0, "phase_name": "p", "exhibits": shown}]}
    (folder / "exhibits.json").write_text(json.dumps(told))
    page = build([folder], tmp_path / "report.html").read_text()
    for sentence in ("The first 12 of 20 lines", "The first 60 of 100 rows", "The first 30 of 40 columns"):
        assert f"{sentence}; all are in exhibits.json." in page
    assert "The first 2000 of 3000 points" in page and "No number of it is finite." in page
    assert "No point of it is finite." in page and "<b>" not in page and "&lt;b&gt;" in page
    del shown[3]["columns"]["x"]
    (folder / "exhibits.json").write_text(json.dumps(told))
    with pytest.raises(HansaError, match="'dots' is a scatter, which has two columns of numbers"):
        build([folder], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("kind", "columns", "says"),
    [
        ("pie", {"a": [1.0]}, "must be one of curve, scatter, heat map. Got 'pie'"),
        ("curve", {}, "must have columns of one length, and at least a row"),
        ("curve", {"a": [1.0], "b": [1.0, 2.0]}, "must have columns of one length"),
        ("curve", {"a": [1.0, 2.0]}, "is a curve, which has one row of numbers"),
        ("curve", {"a": ["text"]}, "is a curve, which has one row of numbers"),
        ("scatter", {"a": [1.0], "b": [1.0], "c": ["x"]}, "of text only 'group' and 'name'"),
        ("scatter", {"a": [1.0]}, "is a scatter, which has two columns of numbers"),
        ("heat map", {"a": [1.0]}, "is a heat map, which has one column of text"),
        ("heat map", {"a": ["x", 1.0], "b": [1.0, 2.0]}, "mixes text and numbers in a column"),
    ],
)
def test_bad_exhibits_are_refused(kind: Any, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(HansaError, match=says.replace("(", r"\(")):
        Exhibit("it", kind, columns)


def test_exhibits_survive_the_store_and_have_titles_of_their_own() -> None:
    shown = Exhibit("ä", "heat map", {"row": ["x", "y"], "b": [1.5, float("nan")]}, "note")
    (again,) = unpacked(packed([shown]))
    assert again.numbers == {"b": [1.5, None]} and again.texts == {"row": ["x", "y"]} and again.note == "note"
    with pytest.raises(HansaError, match="Two exhibits of one phase have the title 'ä'"):
        packed([shown, shown])


def test_the_principal_plane_is_that_of_the_covariance() -> None:
    points = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 3, 1, 1, 1, 1])
    plane = principal_plane(points)
    values, vectors = np.linalg.eigh(np.cov(points.double().numpy().T, bias=True))
    np.testing.assert_allclose(plane.var(0, unbiased=False), values[[-1, -2]], rtol=1e-9)
    along = (points.double() - points.double().mean(0)).numpy() @ vectors[:, -1]
    np.testing.assert_allclose(np.abs(plane[:, 0].numpy()), np.abs(along), rtol=1e-9)
    assert torch.equal(principal_plane(points), plane) and torch.allclose(principal_plane(points + 3), plane, atol=1e-5)
    assert principal_plane(torch.ones(1, 3)).tolist() == [[0.0, 0.0]]
    assert principal_plane(torch.tensor([[1.0], [3.0]])).tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_neighbours_are_neighbours_on_the_plane_of_t_sne() -> None:
    """Whatever their distances: here the cluster of a point is told by its two nearest neighbours."""
    cluster = torch.arange(24) % 4
    points = 10 * torch.eye(4)[cluster] + torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    plane = neighbour_plane(points)
    near = torch.cdist(plane, plane).argsort(1)[:, 1:3]
    assert plane.dtype == torch.float64 and torch.equal(cluster[near], cluster[:, None].expand(24, 2))
    assert torch.equal(neighbour_plane(points), plane)
    assert torch.equal(neighbour_plane(points[:3]), principal_plane(points[:3]))  # too few to have neighbours


def test_clients_must_tell_leaves_of_one_shape(tmp_path: Path) -> None:
    data = DataPlan(Digits(), Dirichlet(3, alpha=0.5), TestSplit("local"))
    with pytest.raises(HansaError, match="the same leaves and shapes for all of them, and does not: fill up"):
        hansa.run(plan_of(Uneven(), data=data), out=tmp_path / "run")


FLIC = FlicClass(LocalTraining(lr=0.01, optimiser="adam", batch_size=32), Alignment(spread=2.0, pretrain_epochs=1))
STARTED = {**ENGINES, "auto": Auto()}


@pytest.mark.parametrize("engine", [*STARTED, "flower"])
def test_pictures_of_alignment_begin_before_it(tmp_path: Path, engine: str) -> None:
    """Also before pre-training, which aligns; by hand from the networks and anchors of the start."""
    from hansa.plan.assemble import assemble

    phases = tuple(PhasePlan(FLIC, 2, name, evaluate_every=2) for name in ("first", "second"))
    plan = plan_of(phases=phases, engine=STARTED.get(engine, Flower(Loopback(str(tmp_path / "sites")))))
    run, made = hansa.run(plan, out=tmp_path / "run"), assemble(plan).experiment
    first, second = (phase["exhibits"] for phase in run.exhibits["phases"])
    for curve, before, after in (first, second):
        assert curve["round"] == [0, 2] and (before["round"], after["round"]) == (0, 2)
        assert before["note"].startswith(
            "Before alignment: what clients start from, neither pre-trained nor trained. Pr"
        )
        assert after["note"].startswith("Principal components of")
    server, task = FLIC.server_init(made.task), made.task
    anchors = torch.stack([server[f"anchors.{number}.mean"] for number in range(10)])
    means = [
        class_means(task.features(task.params(), one.train.x), one.train.y, 10)
        for one in made.federation.clients.values()
    ]
    far = torch.stack([(own - anchors).norm(dim=1) for own in means])  # clients have all classes
    assert first[0]["columns"]["mean"][0] == pytest.approx(float(far.mean()), rel=1e-5)
    alone = hansa.run(replace(plan, phases=phases[:1], engine=Serial()), out=tmp_path / "alone")
    models = [hansa.load_model(alone, name, trust=True).weights for name in run.data["clients"]]
    later = [
        class_means(task.features(own, one.train.x), one.train.y, 10)
        for own, one in zip(models, made.federation.clients.values(), strict=True)
    ]
    far = torch.stack([(own - anchors).norm(dim=1) for own in later])  # … from the anchors that the second begins with
    assert second[0]["columns"]["mean"][0] == pytest.approx(float(far.mean()), rel=1e-3)
    assert run.rounds[2]["before"] == run.rounds[1]["metrics"]
    page = build([run.path], tmp_path / "report.html").read_text()
    assert "second, classes in the latent space, before its first round" in page
    assert "second, classes in the latent space, round 2" in page


def test_a_run_that_stops_in_its_first_round_keeps_what_it_began_with(tmp_path: Path) -> None:
    import signal

    plan = plan_of(FLIC)
    whole = hansa.run(plan, out=tmp_path / "whole")
    half = hansa.run(plan, out=tmp_path / "half", watchers=[lambda record: signal.raise_signal(signal.SIGINT)])
    assert half.status == "interrupted" and half.rounds[-1]["round"] == 1
    assert [one["round"] for one in half.exhibits["phases"][0]["exhibits"]] == [[0, 1], 0, 1]
    assert hansa.resume(tmp_path / "half", trust=True).exhibits == whole.exhibits


def test_the_start_is_observed_once_and_only_where_it_is_shown(tmp_path: Path) -> None:
    """A second phase evaluates its start for exhibits alone; anchors from means have no start to show."""
    means = replace(FLIC, anchors=replace(FLIC.anchors, start="means"))
    runs = {}
    for name, algorithm in (("start", FLIC), ("means", means)):
        phases = (PhasePlan(FedAvg(LocalTraining(lr=0.1)), 1), PhasePlan(algorithm, 2))
        runs[name] = hansa.run(plan_of(phases=phases), out=tmp_path / name)
    told = {
        name: [one["round"] for phase in run.exhibits.get("phases", []) for one in phase["exhibits"]]
        for name, run in runs.items()
    }
    assert told == {"start": [[0, 1, 2], 0, 2], "means": [[1, 2], 1, 2]}
    note = runs["means"].exhibits["phases"][0]["exhibits"][1]["note"]
    assert note.startswith("Before alignment: after the round in which clients train without it. Principal")
    asked = {name: [record["bytes_evaluate"] for record in run.rounds] for name, run in runs.items()}
    assert asked["start"][1] > asked["means"][1] and asked["start"][2] == asked["means"][2]


def test_who_is_forgotten_is_taken_out_of_all_pictures(tmp_path: Path) -> None:
    """Those before the first round, too; nobody knows what of them shows the client."""
    phases = (PhasePlan(FLIC, 1, "first"), PhasePlan(Fed3R(), 1, "closed", remember="uploads"))
    run = hansa.run(plan_of(phases=phases), out=tmp_path / "run")
    assert [one["round"] for one in run.exhibits["phases"][0]["exhibits"]] == [[0, 1], 0, 1]
    forget(run.path, run.data["clients"][0], trust=True)
    assert Run.open(run.path).exhibits == {}


def test_wrappers_of_the_server_show_the_models_they_deploy_and_private_ones_tell_nothing() -> None:
    class Spy(Latent):
        def exhibits(self, task: Any, server: Any, observed: Any) -> Any:
            return server

        def observes_start(self, task: Any) -> bool:
            return True

    task = hansa.Task(MLP((4,)), (8,), 2)
    wima = Wima(Spy(FedAvg()), window=2)
    server = wima.server_init(task)
    assert wima.exhibits(task, server, {}).keys() == FedAvg().server_init(task).keys()
    data = hansa.ClientData(torch.zeros(2, 8), torch.tensor([0, 1]))
    assert Private(Latent(FedAvg()), noise="simulated").observe(task, task.params(), data) == {}
    assert wima.observes_start(task) and not Private(Spy(FedAvg()), noise="simulated").observes_start(task)
