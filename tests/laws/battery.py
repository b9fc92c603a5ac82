"""What the laws are tried on: every name of the catalogue, every engine, orchestration and store, on one federation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from law_examples import AtSites, Lines, NormNet, PrototypeBank, TinyNet

from hansa.algorithms.calibrate import Calibrate
from hansa.algorithms.checkpoint import Checkpoint
from hansa.algorithms.deepafl import DeepAFL
from hansa.algorithms.describe import Describe
from hansa.algorithms.ditto import Ditto
from hansa.algorithms.feature_scale import FeatureScale
from hansa.algorithms.fed3r import Fed3R
from hansa.algorithms.fed3r_ft import Fed3RFT
from hansa.algorithms.fed3r_select import Fed3RSelect
from hansa.algorithms.fedalt import FedAlt
from hansa.algorithms.fedavg import FedAvg
from hansa.algorithms.fedavg_ft import FedAvgFT
from hansa.algorithms.fedbn import FedBN
from hansa.algorithms.fedcof import FedCOF
from hansa.algorithms.feddbe import FedDBE
from hansa.algorithms.feddyn import FedDyn
from hansa.algorithms.fedgh import FedGH
from hansa.algorithms.fedhenn import FedHeNN
from hansa.algorithms.fedncm import FedNCM
from hansa.algorithms.fedpcl import FedPCL
from hansa.algorithms.fedper import FedPer
from hansa.algorithms.fedproto import FedProto
from hansa.algorithms.fedprox import FedProx
from hansa.algorithms.fedrep import FedRep
from hansa.algorithms.fedsim import FedSim
from hansa.algorithms.fedtgp import FedTGP
from hansa.algorithms.flic import Alignment, Flic
from hansa.algorithms.flic_class import FlicClass
from hansa.algorithms.flic_hl import FlicHL
from hansa.algorithms.flic_s3 import FlicS3
from hansa.algorithms.guarded import Guarded
from hansa.algorithms.hetfedrep import HetFedRep
from hansa.algorithms.input_scale import InputScale
from hansa.algorithms.l2gd import L2GD
from hansa.algorithms.lda import LDA
from hansa.algorithms.lg_fedavg import LGFedAvg
from hansa.algorithms.local import Local
from hansa.algorithms.mime import Mime
from hansa.algorithms.mimelite import MimeLite
from hansa.algorithms.oll import OLL
from hansa.algorithms.perfedavg import PerFedAvg
from hansa.algorithms.personal import Personal
from hansa.algorithms.pfedme import PFedMe
from hansa.algorithms.private import Private
from hansa.algorithms.prototype_noise import PrototypeNoise
from hansa.algorithms.robust import Robust
from hansa.algorithms.scaffold import Scaffold
from hansa.algorithms.self_guarded import SelfGuarded
from hansa.algorithms.wima import Wima
from hansa.channels.channel import Channel
from hansa.channels.quantise import Quantise
from hansa.channels.secure_sum import SecureSum
from hansa.channels.top_k import TopK
from hansa.contract import Algorithm
from hansa.data.federation import Federation, federation_from_clients
from hansa.engines.auto import Auto
from hansa.engines.cluster import Ray
from hansa.engines.flower import Flower
from hansa.engines.processes import Processes
from hansa.engines.serial import Serial
from hansa.engines.session import Engine
from hansa.engines.vectorised import Vectorised
from hansa.features.module import FrozenModule
from hansa.io import wire
from hansa.io.files import write_whole
from hansa.io.store import DiskStore, MemoryStore, Store
from hansa.models.deep_random_features import DeepRandomFeatures
from hansa.models.dense import Linear
from hansa.models.latent import Latent
from hansa.models.random_features import RandomFeaturesModel
from hansa.models.standardised import Standardised
from hansa.models.tokens import ColumnTokens
from hansa.orchestrate.chains import Chains
from hansa.orchestrate.dropout import Dropout
from hansa.orchestrate.fedasyncseq import FedAsyncSeq
from hansa.orchestrate.fedseq import FedCyclic, FedSeq
from hansa.orchestrate.fedseq2par import FedSeq2Par
from hansa.orchestrate.planner import Orchestration
from hansa.orchestrate.star import Star, Sweep
from hansa.plan.shapes import networks_of
from hansa.ridge import GaussianMechanism
from hansa.running.experiment import Experiment, Phase
from hansa.running.loop import run_phases
from hansa.running.phase_run import PhaseRun
from hansa.server.optimisers import SGD, Adam, Yogi
from hansa.server.robust_rules import Krum, NormBound, TrimmedMean
from hansa.task import ClientData, Model, Task
from hansa.training.local import LocalTraining
from hansa.training.objectives import CrossEntropy
from hansa.training.schedules import Cosine
from journals import ListJournal

Disk = Callable[[], DiskStore]  # opens a test's store on disk
HEAD = Path(tempfile.gettempdir()) / f"hansa-law-{os.getuid()}.safetensors"
write_whole(HEAD, wire.pack({"head.bias": torch.tensor([0.5, -0.5, 0.25])}))
WIDTH, CLASSES, CLIENTS = 5, 3, 7
LOCAL = LocalTraining(lr=0.1, epochs=2, batch_size=4)
OWN = replace(LOCAL, train="features")
FEW = LocalTraining(lr=0.02, epochs=1, batch_size=8)
QUICK: dict[str, Any] = {"strength": 0.1, "calibration": 0.1, "pretrain_epochs": 1, "draws": 3, "spread": 1.0}

# Every name of the catalogue, in one or more settings (`name/setting`); `each` is an example of what may come.
ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": FedAvg(LOCAL),
    "fedavg/head": FedAvg(LocalTraining(lr=0.1, train="head")),
    "fedavg/momentum": FedAvg(LocalTraining(momentum=0.5, weight_decay=0.01), SGD(momentum=0.9)),
    "fedavg/adam": FedAvg(LOCAL, Adam()),
    "fedavg/yogi": FedAvg(LOCAL, Yogi(), "uniform"),
    "fedavg/local-adam": FedAvg(LocalTraining(0.01, 2, 4, optimiser="adam", clip=0.5, schedule=Cosine())),
    "fedavg/smooth": FedAvg(replace(LOCAL, lr=0.01, objective=CrossEntropy(0.1, "balanced"), optimiser="adamw")),
    "fedavg/own-columns": FedAvg(LOCAL, SGD(momentum=0.5)),
    "fed3r": Fed3R(),
    "fed3r/full": Fed3R(upload="full", normalize="gamma", intercept=True),
    "fed3r/factor": Fed3R(ridge="gcv", upload="factor"),
    "fed3r/private": Fed3R(privacy=GaussianMechanism(5.0, noise="simulated"), keep_sums=True),
    "fed3r/released": Fed3R(privacy=GaussianMechanism(5.0, client_norm=2.0, noise="simulated")),
    "fed3r/local": Fed3R(privacy=GaussianMechanism(5.0, noise="simulated"), trust="local"),
    "fed3r-select": Fed3RSelect(held_out=0.5),
    "fed3r-ft": Fed3RFT(FedAvg(LOCAL)),
    "fedncm": FedNCM(),
    "lda": LDA(),
    "fedcof": FedCOF(least=2),
    "deepafl": DeepAFL(),
    "deepafl/factor": DeepAFL(0.1, 0.1, upload="factor"),
    "describe": Describe(local=LOCAL),
    "describe/conf": Describe("conf", LOCAL),
    "describe/task2vec": Describe("task2vec", LOCAL, FrozenModule("law_examples:small_probe"), 4),
    "describe/labels": Describe("labels"),
    "calibrate": Calibrate(),
    "oll": OLL(),
    "checkpoint": Checkpoint(str(HEAD)),
    "feature-scale": FeatureScale(),
    "input-scale": InputScale(),
    "personal": Personal(FedAvg(LOCAL), keep="head"),
    "personal/own-encoder": Personal(FedAvg(LOCAL), keep="features"),
    "personal/scaffold": Personal(Scaffold(LOCAL), keep="head"),
    "personal/fed3r-ft": Personal(Fed3RFT(FedAvg(LOCAL)), keep=("features", "!features.1.weight")),
    "fedprox": FedProx(LOCAL, mu=0.5),
    "scaffold/I": Scaffold(LOCAL, option="I"),
    "scaffold": Scaffold(LOCAL, SGD(0.5, 0.9)),
    "scaffold/uniform": Scaffold(LOCAL, weights="uniform"),
    "feddyn": FedDyn(LOCAL, 0.1),
    "mime": Mime(LOCAL, 0.5),
    "mimelite": MimeLite(LOCAL, 0.5),
    "wima": Wima(FedAvg(LOCAL), window=2),
    "wima/scaffold": Wima(Scaffold(LOCAL), window=4, block=2),
    "guarded": Guarded(FedAvg(LOCAL), patience=1),
    "guarded/newest": Guarded(FedAvg(LOCAL), memory=0.0),
    "guarded/mime": Guarded(Mime(LOCAL, 0.5)),
    "wima/guarded": Wima(Guarded(FedAvg(LOCAL)), window=2),
    "robust/guarded": Robust(Guarded(FedAvg(LOCAL), by_class=False)),
    "guarded/scaffold": Guarded(Scaffold(LOCAL, SGD(momentum=0.5))),
    "self-guarded": SelfGuarded(FedSim(LOCAL)),
    "self-guarded/local": SelfGuarded(Local(replace(LOCAL, lr=20.0, momentum=0.5), 0.1), tries=2),
    "self-guarded/ditto": SelfGuarded(Ditto(LOCAL, strength=0.5), grow=2.0),
    "robust": Robust(FedAvg(LOCAL)),
    "robust/trimmed": Robust(Personal(FedAvg(LOCAL)), TrimmedMean(0.25)),
    "robust/krum": Robust(FedAvg(LOCAL, Adam()), Krum(byzantine=0, selected=2)),
    "robust/bound": Robust(Scaffold(LOCAL), NormBound()),
    "robust/mime": Robust(Mime(LOCAL, 0.5), NormBound(0.5)),
    "private": Private(FedAvg(LOCAL), epsilon=50.0, clip=0.5, noise="simulated"),
    "private/secret": Private(FedProx(LOCAL), epsilon=50.0, noise="simulated", cohorts="secret"),
    "private/scaffold": Private(Scaffold(LOCAL, option="I"), epsilon=50.0, noise="simulated"),
    "private/mime": Private(Mime(LOCAL, 0.5), epsilon=50.0, noise="simulated"),
    "private/personal": Private(Personal(FedAvg(LOCAL)), epsilon=50.0, noise="simulated"),
    "local": Local(LOCAL, 0.1),
    "fedavg-ft": FedAvgFT(LOCAL, tune=LocalTraining(train="head")),
    "per-fedavg": PerFedAvg(LOCAL, alpha=0.1),
    "per-fedavg/hf": PerFedAvg(LOCAL, alpha=0.1, order="hf"),
    "pfedme": PFedMe(LOCAL, strength=5.0, inner_steps=2, outer_lr=0.1),
    "pfedme/head": PFedMe(LOCAL, strength=5.0, inner_steps=2, outer_lr=0.1, keep="head"),
    "ditto": Ditto(LOCAL, strength=0.5, personal_epochs=3),
    "l2gd": L2GD(LocalTraining(batch_size=4), 0.5, 0.3),
    "fedper": FedPer(LOCAL),
    "fedrep": FedRep(LOCAL, head_epochs=3),
    "fedbn": FedBN(LOCAL),
    "fedsim": FedSim(LOCAL),
    "fedalt": FedAlt(LOCAL),
    "lg-fedavg": LGFedAvg(LOCAL),
    "feddbe": FedDBE(LOCAL, strength=2.0),
    "fedpcl": FedPCL(OWN, 0.5),
    "fedpcl/negatives": FedPCL(replace(OWN, lr=0.01, optimiser="adam"), 0.5, "negatives", bank="unpadded"),
    "fedpcl/program": FedPCL(OWN, 0.5, direction="prototypes", bank="sampled", sets=2, global_term=False),
    "fedpcl/supervised": FedPCL(OWN, 0.5, loss="supervised"),
    "fedproto": FedProto(LOCAL, 0.5, "classifier"),
    "fedtgp": FedTGP(LOCAL, server=LocalTraining(0.01, 3, 4), predict="prototypes"),
    "fedgh": FedGH(LOCAL, LOCAL),
    "prototype-noise": PrototypeNoise(FedPCL(OWN, 0.5, bank="mean"), "laplace", 0.2, 0.01),
    "flic": Flic(L2GD(FEW, 0.5, 0.3, "features"), Alignment(distance="mmd", **QUICK)),
    "flic-class": FlicClass(FEW, Alignment(distance="w2-sampled", extra_epochs=1, meta_classes=(0, 1, 0), **QUICK)),
    "flic-hl": FlicHL(FEW, anchors=Alignment(covariance="learnt", pretrain_batch=5, **QUICK)),
    "flic-s3": FlicS3(4, 2),
    "hetfedrep": HetFedRep(FEW, shared_from=1),
    "fedhenn": FedHeNN(FEW, 0.5, 5),
    "each": PrototypeBank(),
}
HIDDEN = Latent(TinyNet(), 4, 3)
MODELS: dict[str, Model] = {
    "fedbn": NormNet(),
    "feature-scale": RandomFeaturesModel(dimension=8),
    "input-scale": Standardised(TinyNet()),
    "deepafl": DeepRandomFeatures(dimension=4, layers=2),
    "deepafl/factor": DeepRandomFeatures(dimension=4, layers=2),
    "fedavg/own-columns": ColumnTokens(4, (6,)),
    "flic-hl": HIDDEN,
    "hetfedrep": HIDDEN,
    "flic-s3": Linear(),
}
# What first collects something from the clients that it visits, before any of them trains.
COLLECTS = {"feddbe", "fedpcl", "fedpcl/negatives", "fedpcl/program", "prototype-noise"}
# Clients of these have inputs of different widths.
WIDE = {"personal/own-encoder", "fedavg/own-columns", "flic", "flic-hl", "flic-s3", "hetfedrep", "fedhenn"}
# What cannot be trained in chains, and says so before a run begins.
UNCHAINED = {name for name, one in ALGORITHMS.items() if one.no_chains or name.startswith("robust")}
UNLINED = {*UNCHAINED, *(name for name, one in ALGORITHMS.items() if one.exchanges > 1)}
ORCHESTRATIONS: dict[str, Orchestration] = {
    "star": Star(4),
    "sweep": Sweep(),
    "chains": Chains(3),
    "dropout": Dropout(Star(4), 0.2),
    "lines": Lines(),
    "fedcyclic": FedCyclic(4),
    "fedseq": FedSeq(superclients=3, fraction=0.6, passes=2),
    "fedasyncseq": FedAsyncSeq(superclients=3, fraction=0.6, window=2),
    "fedseq2par": FedSeq2Par("random", fraction=0.6, alpha=0.5, beta=2),
}
CHANNELS: dict[str, Channel] = {"secure-sum": SecureSum(), "quantise": Quantise(), "top-k": TopK(0.3)}
ENGINES: dict[str, Engine] = {
    "serial": Serial(),
    "auto": Auto(),
    "vectorised": Vectorised(),
    "stacked": Vectorised(path="stacked"),
    "processes": Processes(1),
    "ray": Ray(1),
    "flower": Flower(AtSites()),
}


def named(algorithm: Algorithm) -> str:
    """The battery's name of an algorithm."""
    return next(name for name, one in ALGORITHMS.items() if one is algorithm)


def federation(clients: int = CLIENTS, widths: bool = False, seed: int = 0) -> Federation:
    """Clients of different sizes and shifted inputs; with `widths` also of different input widths."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randn(WIDTH, CLASSES, generator=rng)
    made = {}
    for k in range(clients):
        n = 8 + 3 * k
        x = torch.randn(n + 4, WIDTH, generator=rng) + 0.3 * k
        y = (x @ truth).argmax(1)
        y[:CLASSES] = torch.arange(CLASSES)
        if widths:
            x = torch.cat([x, torch.randn(n + 4, k % 3, generator=rng)], 1)
        made[f"c{k}"] = (x[:n].numpy(), y[:n].numpy(), x[n:].numpy(), y[n:].numpy())
    columns = {name: [f"column {place}" for place in range(arrays[0].shape[1])] for name, arrays in made.items()}
    return federation_from_clients(made, columns=columns if widths else None)


def public() -> ClientData:
    """Some samples of every class that are nobody's."""
    rng = torch.Generator().manual_seed(99)
    return ClientData(torch.randn(4 * CLASSES, WIDTH, generator=rng), torch.arange(CLASSES).repeat(4))


def experiment(
    algorithm: Algorithm,
    *,
    rounds: int = 3,
    orchestration: Orchestration | None = None,
    engine: Engine | None = None,
    data: Federation | None = None,
    model: Model | None = None,
    seed: int = 0,
) -> Experiment:
    """One phase of an algorithm; closed-form ones are given the sweep they need."""
    known = next((name for name, one in ALGORITHMS.items() if one is algorithm), "")
    data = data or federation(widths=known in WIDE or algorithm == ALGORITHMS["personal/own-encoder"])
    orchestration = (
        Sweep() if algorithm.one_shot and not isinstance(orchestration, Chains) else orchestration or Star(4)
    )
    phase = Phase("only", algorithm, orchestration, 1 if algorithm.one_shot else rounds)
    common, own = networks_of(model or MODELS.get(known, TinyNet()), data.inputs())
    shape, count = common.input_shape if own else (WIDTH,), len(data.clients)
    task = Task(common.model, shape, CLASSES, count, seed, samples=data.mass(), public=public(), networks=own)
    return Experiment(task, data, (phase,), engine or Serial(), seed)


def outcome(made: Experiment, store: Store | None = None) -> tuple[PhaseRun, ListJournal]:
    """Play an experiment; the last stage shows what came out."""
    store, journal = store or MemoryStore(), ListJournal()
    assert run_phases(made, store, journal)
    stage = None
    for index in range(len(made.phases)):
        stage = PhaseRun(made, index, store, stage)
    assert stage is not None
    return stage, journal


def clients_states(stage: PhaseRun) -> dict[str, dict[str, torch.Tensor]]:
    """Every client's state."""
    found = {name: stage.store.get(f"{stage.index}/client", name) for name in stage.names}
    return {name: state for name, state in found.items() if state is not None}
