"""Algorithms that share prototypes: steps by hand, messages, and clients that have little."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_problems import deployed, rng, sent, visit
from torch import Tensor, nn

import hansa
from hansa.algorithms.feddbe import FedDBE
from hansa.algorithms.fedgh import FedGH
from hansa.algorithms.fedpcl import FedPCL
from hansa.algorithms.fedproto import FedProto
from hansa.algorithms.fedtgp import FedTGP, Generator
from hansa.algorithms.lg_fedavg import LGFedAvg
from hansa.algorithms.local import Local
from hansa.algorithms.prototype_noise import PrototypeNoise
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.errors import HansaError
from hansa.io.codec import piece_from_table
from hansa.io.store import MemoryStore
from hansa.models.dense import MLP, Linear
from hansa.models.networks import Split
from hansa.orchestrate.star import Star
from hansa.payload import Update, set_apart
from hansa.plan.files import plan_from_table
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.task import ClientData, Model, Task
from hansa.training.contrast import unit
from hansa.training.local import LocalTraining
from hansa.tree import Tree, equal, pick
from journals import ListJournal

CLASSES, WIDTH, HIDDEN, TAU = 3, 5, 4, 0.5
ALL, SERIAL, WIDE = Star(fraction=1.0), Serial(), MLP((256,))


@dataclass(frozen=True)
class Double:
    """A projection and a head in double precision."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        features = nn.Sequential(nn.Linear(*input_shape, HIDDEN), nn.ReLU())
        return Split(features, nn.Linear(HIDDEN, outputs)).double()


TASK = Task(Double(), (WIDTH,), CLASSES, population=3)
STEP = LocalTraining(lr=0.1, batch_size=100)  # one step of SGD on all samples


def client(seed: int, labels: list[int]) -> ClientData:
    return ClientData(torch.randn(len(labels), WIDTH, generator=rng(seed), dtype=torch.float64), torch.tensor(labels))


A, B, C = client(1, [0, 1, 0, 2, 1]), client(2, [0, 0, 1]), client(3, [2, 2])
PEOPLE = {"ann": A, "bob": B, "cat": C}


def uploaded(name: str, data: ClientData, algorithm: Algorithm, server: Tree) -> Update:
    """What the server receives of one client."""
    up, _ = visit(algorithm, TASK, server, data)
    sums = algorithm.decode(TASK, algorithm.encode(up.sums))
    return set_apart(algorithm.uplink, name, replace(up, sums=sums))


def after_one_round(algorithm: Algorithm, people: dict[str, ClientData] = PEOPLE) -> Tree:
    """The server's state after everybody was visited once."""
    server = algorithm.server_init(TASK)
    total: Update | None = None
    for name, data in people.items():
        up = uploaded(name, data, algorithm, server)
        total = up if total is None else total + up
    assert total is not None
    return algorithm.server_step(TASK, server, total)


def project(params: Tree, x: Tensor) -> Tensor:
    return F.relu(x @ params["features.0.weight"].T + params["features.0.bias"])


def means(z: Tensor, y: Tensor) -> dict[int, Tensor]:
    return {c: torch.stack([z[i] for i in range(len(y)) if y[i] == c]).mean(0) for c in range(CLASSES) if c in y}


# --------------------------------------------------------------------------------------------------------------- FedPCL

PCL = FedPCL(replace(STEP, train="features"), TAU)


def local_prototypes(params: Tree, data: ClientData) -> dict[int, Tensor]:
    return means(F.normalize(project(params, data.x), dim=1), data.y)


def test_the_first_round_collects_prototypes_and_trains_nothing() -> None:
    start = TASK.params()
    up, state = visit(PCL, TASK, PCL.server_init(TASK), A)
    assert sent(PCL, TASK, {}) == {}
    assert equal(pick("own", state), {key: leaf for key, leaf in start.items() if key.startswith("features.")})
    for c, mean in local_prototypes(start, A).items():
        assert torch.allclose(up.sums["prototypes"][c], mean, rtol=1e-12)
    assert up.sums["counts"].tolist() == [2, 2, 1] and up.flops == 5 * TASK.features_flops
    later, moved = visit(PCL, TASK, after_one_round(PCL), A, state)
    assert later.flops > up.flops and not equal(moved, state)


def bank_by_hand() -> tuple[Tensor, list[Tensor]]:
    """The global prototypes (eq. 6 without the factor) and every client's padded set (eq. 7), of length one."""
    start = TASK.params()
    own = {name: local_prototypes(start, data) for name, data in PEOPLE.items()}
    common = []
    for c in range(CLASSES):
        counts = {name: int((data.y == c).sum()) for name, data in PEOPLE.items()}
        total = sum(own[name][c] * count for name, count in counts.items() if count)
        common.append(total / sum(counts.values()))
    sets = [
        torch.stack([F.normalize(found.get(c, common[c]), dim=0) for c in range(CLASSES)]) for found in own.values()
    ]
    return F.normalize(torch.stack(common), dim=1), sets


def test_the_server_averages_and_pads() -> None:
    down, (common, sets) = sent(PCL, TASK, after_one_round(PCL)), bank_by_hand()
    assert torch.allclose(down["global"], common, rtol=1e-12)
    assert down["bank"].shape == (3, CLASSES, HIDDEN)
    for one in sets:
        assert sum(torch.allclose(one, other, rtol=1e-12) for other in down["bank"]) == 1


@pytest.mark.parametrize("denominator", ["all", "negatives"])
@pytest.mark.parametrize("global_term", [True, False])
def test_one_step_by_hand(denominator: str, global_term: bool) -> None:
    algorithm = replace(PCL, denominator=denominator, global_term=global_term)
    _, state = visit(algorithm, TASK, after_one_round(algorithm), A)
    own = {key: leaf.clone().requires_grad_() for key, leaf in TASK.params().items() if key.startswith("features.")}
    common, sets = bank_by_hand()
    z = F.normalize(project(own, A.x), dim=1)
    loss = torch.zeros((), dtype=torch.float64)
    for prototypes, share in [*([(common, 1.0)] if global_term else []), *((one, 1 / len(sets)) for one in sets)]:
        for i, y in enumerate(A.y.tolist()):
            near = [torch.dot(z[i], prototypes[c]) / TAU for c in range(CLASSES)]
            below = sum(near[c].exp() for c in range(CLASSES) if denominator == "all" or c != y)
            loss = loss - share * (near[y] - torch.log(torch.as_tensor(below))) / len(A)
    for (key, leaf), slope in zip(own.items(), torch.autograd.grad(loss, list(own.values())), strict=True):
        assert torch.allclose(state[f"own.{key}"], leaf.detach() - 0.1 * slope, rtol=1e-10, atol=1e-12), key
        assert slope.abs().max() > 1e-3


def test_a_client_deploys_the_nearest_of_its_own_prototypes() -> None:
    model = deployed(PCL, TASK, after_one_round(PCL), PCL.client_init(TASK, B), B)
    own, x = local_prototypes(TASK.params(), B), client(9, [0] * 20).x
    out = PCL.outputs(TASK, model, x)
    z = project(TASK.params(), x)
    for i in range(len(x)):
        near = {c: torch.dot(z[i], p) / z[i].norm() / p.norm() / TAU for c, p in own.items()}
        assert int(out[i].argmax()) == max(near, key=lambda c: float(near[c]))
        assert all(float(out[i, c]) == pytest.approx(float(value)) for c, value in near.items())
    assert (out[:, 2] == -math.inf).all() and set(model) == set(TASK.params())
    assert PCL.serve(TASK, after_one_round(PCL)) == {}  # nothing must travel for it


# ------------------------------------------------------------------------------------------------------------- messages


def test_names_do_not_travel_and_the_order_does_not_tell_them() -> None:
    """Whoever is called what, clients receive the same message, bit for bit."""
    for bank in ("whole", "unpadded", "mean"):
        algorithm = replace(PCL, bank=bank)
        down = sent(algorithm, TASK, after_one_round(algorithm))
        renamed = {"bob": A, "cat": B, "ann": C}
        assert equal(down, sent(algorithm, TASK, after_one_round(algorithm, renamed)))
        assert not any(name in key for name in PEOPLE for key in down)


def test_a_sampled_bank_is_drawn_by_the_server_anew_for_every_round() -> None:
    algorithm = replace(PCL, bank="sampled", sets=2)
    server = after_one_round(algorithm)
    whole = sent(PCL, TASK, server)
    draws = [algorithm.broadcast(TASK, server, rng(seed)) for seed in range(20)]
    assert equal(draws[3], algorithm.broadcast(TASK, server, rng(3)))
    chosen = set()
    for down in draws:
        assert torch.equal(down["global"], whole["global"]) and len(down["bank"]) == 2
        places = [next(k for k in range(3) if torch.equal(one, whole["bank"][k])) for one in down["bank"]]
        assert places == sorted(places)  # by what they hold, not by how they were drawn
        chosen.add(tuple(places))
    assert chosen == {(0, 1), (0, 2), (1, 2)}
    assert len(sent(replace(algorithm, sets=99), TASK, server)["bank"]) == 3


def crowd(clients: int, held: int, classes: int = 10, samples: int = 2) -> Federation:
    """Clients of some classes each, one after the other, with samples to test on."""
    draw, made = np.random.default_rng(0), {}
    centres = draw.standard_normal((classes, 8))
    for k in range(clients):
        own = np.array([(k + c) % classes for c in range(held)] * samples)
        x = (centres[own] + 0.3 * draw.standard_normal((len(own), 8))).astype(np.float32)
        made[f"client-{k}"] = (x, own, x[:held], own[:held])
    made["client-0"] = (*made["client-0"][:2], centres.astype(np.float32), np.arange(classes))
    return federation_from_clients(made)


def run(
    algorithm: Algorithm,
    data: Federation,
    rounds: int = 2,
    star: Star = ALL,
    engine: Engine = SERIAL,
    model: Model = WIDE,
) -> tuple[PhaseRun, list[dict[str, Any]]]:
    samples, journal = next(iter(data.clients.values())).train, ListJournal()
    task = Task(model, tuple(samples.x.shape[1:]), data.num_classes, len(data.clients))
    made = Experiment(task, data, (Phase("only", algorithm, star, rounds),), engine)
    store = MemoryStore()
    assert run_phases(made, store, journal)
    return PhaseRun(made, 0, store, None), journal.records


def test_the_bytes_of_both_directions_are_those_of_the_paper() -> None:
    """80 clients, 10 classes, 256 numbers: 10.6 kB up, and 830 kB down from the second round on."""
    _, (first, second) = run(FedPCL(), crowd(80, 10, samples=1), engine=Vectorised())
    assert first["bytes_up"] == second["bytes_up"] and first["bytes_down"] == 0
    assert second["bytes_up"] / 80 == pytest.approx(10_600, rel=0.01)
    assert second["bytes_down"] / 80 == pytest.approx(830_000, rel=0.001)


def test_what_a_smaller_bank_saves() -> None:
    data = crowd(20, 2)
    down = {
        bank: run(FedPCL(bank=bank, sets=4), data, engine=Vectorised())[1][1]["bytes_down"] / 20  # type: ignore[arg-type]
        for bank in ("whole", "unpadded", "sampled", "mean")
    }
    row = 256 * 4
    assert down["whole"] == pytest.approx((20 * 10 + 10) * row, rel=0.01)
    assert down["unpadded"] == pytest.approx((20 * 2 + 10) * row, rel=0.02)
    assert down["sampled"] == pytest.approx((4 * 10 + 10) * row, rel=0.02)
    assert down["mean"] == pytest.approx(10 * row, rel=0.02)


def test_an_unpadded_bank_costs_no_accuracy() -> None:
    (left, _), (right, _) = (run(FedPCL(bank=bank), crowd(6, 2), 3, model=MLP((8,))) for bank in ("whole", "unpadded"))
    assert left.server.keys() == right.server.keys()
    assert all(torch.allclose(leaf, right.server[key], atol=1e-5) for key, leaf in left.server.items())


def test_who_is_not_visited_stays_in_the_bank() -> None:
    made, records = run(FedPCL(), crowd(6, 3), 8, Star(2), model=MLP((8,)))
    assert len(pick("counts", made.server)) > 2 and all(record["clients"] == 2 for record in records)
    assert records[-1]["bytes_down"] > records[1]["bytes_down"] > records[0]["bytes_down"] == 0


# ----------------------------------------------------------------------------------------------------- FedProto and TGP

PROTO = FedProto(STEP, strength=0.7)


def embedded_means() -> Tensor:
    """The global class means after one step of cross-entropy on every client, by hand."""
    sums, counts = torch.zeros(CLASSES, HIDDEN, dtype=torch.float64), torch.zeros(CLASSES)
    for data in PEOPLE.values():
        params = {key: leaf.clone().requires_grad_() for key, leaf in TASK.params().items()}
        logits = project(params, data.x) @ params["head.weight"].T + params["head.bias"]
        slopes = torch.autograd.grad(F.cross_entropy(logits, data.y), list(params.values()))
        moved = {key: leaf.detach() - 0.1 * slope for (key, leaf), slope in zip(params.items(), slopes, strict=True)}
        for z, y in zip(project(moved, data.x), data.y.tolist(), strict=True):
            sums[y] += z
            counts[y] += 1
    return sums / counts[:, None]


def test_fedproto_pulls_features_towards_the_class_means() -> None:
    server, start = after_one_round(PROTO), TASK.params()
    common = sent(PROTO, TASK, server)["global"]
    assert torch.allclose(common, embedded_means(), rtol=1e-12)
    _, state = visit(PROTO, TASK, server, A)
    own = {key: leaf.clone().requires_grad_() for key, leaf in start.items()}
    z = project(own, A.x)
    loss = F.cross_entropy(z @ own["head.weight"].T + own["head.bias"], A.y)
    loss = loss + 0.7 * sum((z[i] - common[y]).square().mean() for i, y in enumerate(A.y.tolist())) / len(A)
    for (key, leaf), slope in zip(own.items(), torch.autograd.grad(loss, list(own.values())), strict=True):
        assert torch.allclose(state[f"own.{key}"], leaf.detach() - 0.1 * slope, rtol=1e-10, atol=1e-12), key


def test_fedproto_predicts_the_nearest_global_prototype_or_by_its_own_head() -> None:
    server = after_one_round(PROTO)
    common, x, state = sent(PROTO, TASK, server)["global"], client(9, [0] * 20).x, PROTO.client_init(TASK, C)
    out = PROTO.outputs(TASK, deployed(PROTO, TASK, server, state, C), x)
    apart = torch.cdist(project(TASK.params(), x), common)
    assert torch.equal(out.argmax(1), apart.argmin(1))
    assert torch.allclose(out.log_softmax(1), (-apart.square() / 2).log_softmax(1), rtol=1e-10)
    by_head = replace(PROTO, predict="classifier")
    assert by_head.serve(TASK, server) == {}
    own = deployed(by_head, TASK, server, state, C)
    assert torch.equal(by_head.outputs(TASK, own, x), TASK.forward(TASK.params(), x))


def test_fedproto_without_its_term_is_local_training() -> None:
    data, local = crowd(3, 3), LocalTraining(lr=0.1, batch_size=2)
    alone, _ = run(Local(local), data, model=MLP((8,)))
    proto, _ = run(FedProto(local, 0.0, "classifier"), data, model=MLP((8,)))
    for name in alone.names:
        mine, theirs = proto.deployed(name)[1], alone.deployed(name)[1]
        assert all(torch.allclose(leaf, theirs[key], atol=1e-6) for key, leaf in mine.items())


def test_fedtgp_trains_its_prototypes_by_hand() -> None:
    algorithm = FedTGP(STEP, server=replace(STEP, epochs=1), margin=0.05)
    first, server = algorithm.server_init(TASK), after_one_round(algorithm)
    rows = [
        (server[f"prototypes.{name}"][c], c) for name in PEOPLE for c in range(CLASSES) if server[f"counts.{name}"][c]
    ]
    net = {key: leaf.double().requires_grad_() for key, leaf in pick("generator", first).items()}

    def made() -> Tensor:
        hidden = F.relu(net["features.weight"].T @ net["head.0.weight"].T + net["head.0.bias"])
        return hidden @ net["head.2.weight"].T + net["head.2.bias"]

    loss = torch.zeros((), dtype=torch.float64)
    for row, c in rows:
        far = [-(row - one).norm() - (0.05 if k == c else 0.0) for k, one in enumerate(made())]
        loss = loss - (far[c] - torch.stack(far).exp().sum().log()) / len(rows)
    slopes = torch.autograd.grad(loss, list(net.values()))
    for (key, leaf), slope in zip(net.items(), slopes, strict=True):
        expected = (leaf.detach() - 0.1 * slope).float()
        assert torch.allclose(server[f"generator.{key}"].float(), expected, rtol=1e-4, atol=1e-6), key
    trained = {key: leaf.double() for key, leaf in pick("generator", server).items()}
    net = trained
    assert torch.allclose(sent(algorithm, TASK, server)["global"].double(), made(), atol=1e-6)


def test_the_margin_of_fedtgp_follows_the_clients_up_to_its_bound() -> None:
    from hansa.algorithms.fedtgp import _margin

    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 4.0], [9.0, 9.0]])
    assert float(_margin(rows, torch.tensor([0, 0, 1, 1]), 4)) == pytest.approx(math.hypot(5.5, 6.5))
    assert float(_margin(rows[:1], torch.tensor([2]), 4)) == 0.0
    assert isinstance(Generator().build((3,), 4), nn.Module)


# ------------------------------------------------------------------------------------------------ FedGH, DBE, LG-FedAvg


def test_fedgh_trains_its_header_on_the_class_means() -> None:
    algorithm = FedGH(STEP, replace(STEP, lr=0.3))
    server = after_one_round(algorithm)
    held = [(name, c) for name in PEOPLE for c in range(CLASSES) if server[f"counts.{name}"][c]]
    rows = torch.stack([server[f"prototypes.{name}"][c] for name, c in held])
    head = {key: leaf.clone().requires_grad_() for key, leaf in TASK.params().items() if key.startswith("head.")}
    loss = F.cross_entropy(rows @ head["head.weight"].T + head["head.bias"], torch.tensor([c for _, c in held]))
    for (key, leaf), slope in zip(head.items(), torch.autograd.grad(loss, list(head.values())), strict=True):
        assert torch.allclose(server[f"model.{key}"], leaf.detach() - 0.3 * slope, rtol=1e-10)
    _, state = visit(algorithm, TASK, server, A)
    assert {key.split(".")[1] for key in state} == {"features"}
    model = deployed(algorithm, TASK, server, state, A)
    assert torch.equal(model["head.weight"], server["model.head.weight"])
    assert torch.equal(model["features.0.weight"], state["own.features.0.weight"])


def test_feddbe_collects_a_mean_then_trains_with_a_bias_of_its_own() -> None:
    algorithm, start = FedDBE(STEP, strength=2.0), TASK.params()
    server = algorithm.server_init(TASK)
    ups = [visit(algorithm, TASK, server, data)[0] for data in PEOPLE.values()]
    server = algorithm.server_step(TASK, server, ups[0] + ups[1] + ups[2])
    everything = torch.cat([project(start, data.x) for data in PEOPLE.values()])
    assert torch.allclose(server["consensus"], everything.mean(0), rtol=1e-12)
    before = {"bias": torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)}
    up, state = visit(algorithm, TASK, server, A, before)
    own = {key: leaf.clone().requires_grad_() for key, leaf in (start | before).items()}
    z = project(own, A.x)
    loss = F.cross_entropy((z + own["bias"]) @ own["head.weight"].T + own["head.bias"], A.y)
    loss = loss + 2.0 * (z.mean(0) - server["consensus"]).square().sum() / HIDDEN
    slopes = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
    assert torch.allclose(state["bias"], before["bias"] - 0.1 * slopes["bias"], rtol=1e-10)
    assert set(up.sums) == {f"model.{key}" for key in start}
    for key in start:
        assert torch.allclose(up.sums[f"model.{key}"], -0.1 * len(A) * slopes[key], rtol=1e-9, atol=1e-12), key
    model, x = deployed(algorithm, TASK, server, state, A), client(9, [0] * 6).x
    told = TASK.head(start, project(start, x) + state["bias"])
    assert torch.allclose(algorithm.outputs(TASK, model, x), told, rtol=1e-10)


def test_lg_fedavg_shares_the_head_alone() -> None:
    algorithm = LGFedAvg(STEP)
    server = algorithm.server_init(TASK)
    up, state = visit(algorithm, TASK, server, A)
    assert (
        {key.split(".")[1] for key in up.sums}
        == {"head"}
        == {key.split(".")[1] for key in sent(algorithm, TASK, server)}
    )
    assert {key.split(".")[1] for key in state} == {"features"}


# ---------------------------------------------------------------------------------------------------------------- noise


def test_noise_leaves_a_share_of_a_prototype_and_adds_what_was_asked() -> None:
    plain, _ = visit(PCL, TASK, {}, B)
    quiet, _ = visit(PrototypeNoise(PCL, share=0.25, scale=0.0), TASK, {}, B)
    assert torch.equal(quiet.sums["prototypes"], 0.75 * plain.sums["prototypes"])
    none, state = visit(PrototypeNoise(PCL, share=0.0, scale=0.0), TASK, {}, B)
    assert equal(none.sums, plain.sums) and equal(state, visit(PCL, TASK, {}, B)[1])
    for kind, deviation in (("gaussian", 1.0), ("laplace", math.sqrt(2))):
        noisy = PrototypeNoise(PCL, kind, 0.0, 0.3)  # type: ignore[arg-type]
        found = [visit(noisy, TASK, {}, B, seed=seed)[0].sums["prototypes"] for seed in range(300)]
        noise = torch.stack(found)[:, :2] - plain.sums["prototypes"][:2]
        assert float(noise.std()) == pytest.approx(0.3 * deviation, rel=0.1) and abs(float(noise.mean())) < 0.03
        assert not torch.stack(found)[:, 2].any()  # a class that the client lacks stays away


# ------------------------------------------------------------------------------------------------- little to learn from

FAMILY: dict[str, Algorithm] = {
    "fedpcl": FedPCL(),
    "fedpcl/negatives": FedPCL(denominator="negatives", bank="unpadded"),
    "fedpcl/program": FedPCL(direction="prototypes", global_term=False),
    "fedpcl/supervised": FedPCL(loss="supervised"),
    "fedproto": FedProto(),
    "fedtgp": FedTGP(server=LocalTraining(lr=0.01, epochs=2), predict="prototypes"),
    "fedgh": FedGH(),
    "lg-fedavg": LGFedAvg(),
    "feddbe": FedDBE(),
    "prototype-noise": PrototypeNoise(),
}


def poor() -> Federation:
    """One class alone, a class nobody else has, one that is tested without having been seen, features of zeros."""
    draw = np.random.default_rng(1)

    def some(labels: list[int], zeros: bool = False) -> tuple[np.ndarray, np.ndarray]:
        x = draw.standard_normal((len(labels), 6)).astype(np.float32) + np.array(labels)[:, None]
        return (0 * x if zeros else x).astype(np.float32), np.array(labels)

    return federation_from_clients(
        {
            "one class": (*some([0, 0, 0, 0]), *some([0, 0])),
            "its own class": (*some([1, 3, 3, 1]), *some([3, 1])),
            "unseen at training": (*some([0, 1, 0, 1]), *some([0, 1, 2])),
            "zeros": (*some([0, 1, 2, 2], zeros=True), *some([0, 1], zeros=True)),
            "one sample": (*some([2]), *some([2])),
        }
    )


@pytest.mark.parametrize("engine", [Serial(), Vectorised(path="stacked")], ids=["serial", "stacked"])
@pytest.mark.parametrize("name", FAMILY)
def test_clients_that_have_little_are_served(name: str, engine: Engine) -> None:
    made, records = run(FAMILY[name], poor(), 3, engine=engine, model=MLP((8,)))
    for record in records:
        assert not record["failed"]
        assert all(math.isfinite(value) for value in record["metrics"].values()), record["metrics"]
    task, model = made.deployed("one class")
    predicted = made.algorithm.outputs(task, model, torch.randn(5, 6)).argmax(1)
    if name.startswith("fedpcl"):
        assert not predicted.any()  # the only class that it knows


def test_what_cannot_work_is_refused_by_name() -> None:
    for wrong, says in (
        (lambda: FedPCL(temperature=0.0), "'temperature' of FedPCL"),
        (lambda: FedPCL(sets=0), "'sets' of FedPCL"),
        (lambda: FedPCL(bank="mean", global_term=False), "nothing but its global term"),
        (lambda: FedProto(strength=-1.0), "'strength' (λ) of FedProto"),
        (lambda: FedTGP(margin=-1.0), "'margin' (τ) of FedTGP"),
        (lambda: FedDBE(strength=-1.0), "'strength' (κ) of FedDBE"),
        (lambda: PrototypeNoise(Local()), "share prototypes"),
        (lambda: PrototypeNoise(share=1.0), "'share' (p) of PrototypeNoise"),
        (lambda: FedPCL().server_init(Task(Linear(bias=False), (3,), 2)), "head with a bias"),
        (lambda: FedDBE().server_init(Task(Linear(bias=False), (3,), 2)), "head with a bias"),
        (lambda: FedProto().server_init(Task(MLP((4,)), (3,), 2, real=True)), "real numbers, and this needs classes"),
    ):
        with pytest.raises(HansaError) as told:
            wrong()
        assert says in str(told.value)


@pytest.mark.parametrize("damage", ["counts", "classes", "negative"])
def test_an_upload_that_no_client_can_send_is_refused(damage: str) -> None:
    up, _ = visit(PCL, TASK, {}, B)
    wire = PCL.encode(up.sums)
    if damage == "counts":
        wire["counts"] = wire["counts"] + 1
        why = PCL.check(TASK, replace(up, sums=PCL.decode(TASK, wire)))
        assert "'counts'" in why and PCL.check(TASK, up) == ""
        return
    wire["classes"] = wire["classes"] + (5 if damage == "classes" else -1)
    with pytest.raises(HansaError, match="class numbers below 3"):
        PCL.decode(TASK, wire)


# ------------------------------------------------------------------------------------------------------------ in a plan


def test_settings_that_a_plan_leaves_out_are_those_of_the_algorithm() -> None:
    found = piece_from_table("algorithm", {"name": "fedpcl", "local": {"epochs": 3}})
    assert found == FedPCL(replace(FedPCL().local, epochs=3)) and found.local.optimiser == "adam"


def test_a_run_on_the_digits_and_the_model_that_a_client_takes_away(tmp_path: Path) -> None:
    table = {
        "data": {
            "source": "digits",
            "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
            "test": {"kind": "local"},
        },
        "model": {"name": "mlp", "hidden": [32]},
        "phases": [{"algorithm": {"name": "fedpcl"}, "orchestration": {"name": "star", "fraction": 1.0}, "rounds": 3}],
    }
    done = hansa.run(plan_from_table(table, "prototypes", tmp_path), out=tmp_path / "run")
    assert done.summary["phases"][0]["metrics"]["client_accuracy_weighted"] > 0.7
    model = hansa.load_model(tmp_path / "run", "client-001")
    again = hansa.load_model(model.save(tmp_path / "model.safetensors"))
    x = np.random.default_rng(0).random((4, 64)).astype(np.float32)
    chances = again.probabilities(x)
    assert np.array_equal(chances, model.probabilities(x)) and np.allclose(chances.sum(1), 1)


def test_directions_have_length_one() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert torch.equal(unit(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_a_heat_map_shows_what_every_extractor_contributes() -> None:
    task = replace(TASK, spans=(("left", 2), ("right", 3)))
    algorithm, params = FedPCL(STEP), task.params()
    observed = {name: algorithm.observe(task, params, data) for name, data in PEOPLE.items()}
    shown, by_client = algorithm.exhibits(task, {}, observed)
    assert shown.kind == "heat map" and shown.texts["class"] == ["class 0", "class 1", "class 2"]
    assert by_client.kind == "heat map" and by_client.texts["client"] == list(PEOPLE)
    for name, columns in {"left": slice(2), "right": slice(2, 5)}.items():
        for label in range(CLASSES):
            found = []
            for data in PEOPLE.values():
                mine = data.x[data.y == label]
                alone = torch.zeros_like(mine)
                alone[:, columns] = mine[:, columns]
                if len(mine):
                    one, all_of_it = (unit(project(params, x)).mean(0) for x in (alone, mine))
                    found.append(float(one @ all_of_it / (one.norm() * all_of_it.norm())))
            assert shown.numbers[name][label] == pytest.approx(sum(found) / len(found))
        for place, own in enumerate(observed.values()):  # a client's mean is over the classes that it has
            mine = own["likeness"][list(task.columns()).index(name)][own["held"]]
            assert by_client.numbers[name][place] == pytest.approx(float(mine.mean()))
    assert not all(bool(own["held"].all()) for own in observed.values())
    crowd = {f"{number}": observed["ann"] for number in range(61)}
    assert [one.title for one in algorithm.exhibits(task, {}, crowd)] == [shown.title]
    assert algorithm.exhibits(TASK, {}, {name: algorithm.observe(TASK, params, A) for name in PEOPLE}) == ()
