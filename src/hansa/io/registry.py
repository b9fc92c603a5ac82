"""The catalogue: every piece a plan can name, and where it lives.

A piece is a frozen dataclass whose fields are its settings.  A plan writes it as a table
`{name = "dirichlet", alpha = 0.1}`, or as the bare name when all settings keep their defaults.  Anything not listed
here is named by its import path `package.module:Class`, so a piece of your own needs no registration, but whoever
opens the plan must trust it (`hansa.io.trust`).  Entries are strings: naming a piece imports nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from hansa.errors import HansaError, did_you_mean
from hansa.io.trust import NOBODY, Trust, imported

CATALOGUE: Mapping[str, Mapping[str, str]] = {
    "source": {
        "digits": "hansa.data.sources.digits:Digits",
        "npz": "hansa.data.sources.npz:Npz",
        "csv": "hansa.data.sources.table:Csv",
        "parquet": "hansa.data.sources.table:Parquet",
        "images": "hansa.data.sources.images:Images",
        "manifest": "hansa.data.sources.manifest:Manifest",
        "leaf": "hansa.data.sources.leaf:Leaf",
        "text": "hansa.data.sources.text:Text",
        "huggingface": "hansa.data.sources.huggingface:HuggingFace",
        "mixed": "hansa.data.sources.mixed:Mixed",
        "given": "hansa.data.sources.given:Given",
    },
    "partition": {
        "iid": "hansa.data.partitions.label:Iid",
        "dirichlet": "hansa.data.partitions.label:Dirichlet",
        "classes": "hansa.data.partitions.label:ClassesPerClient",
        "shards": "hansa.data.partitions.label:Shards",
        "lognormal": "hansa.data.partitions.size:LogNormal",
        "natural": "hansa.data.partitions.natural:Natural",
        "domain": "hansa.data.partitions.natural:Domain",
        "domain-label": "hansa.data.partitions.natural:DomainLabel",
        "flwr": "hansa.data.partitions.flower:FlowerPartitioner",
    },
    "shift": {
        "channels": "hansa.data.shifts:ChannelShift",
        "fedrdn": "hansa.data.shifts:FedRDN",
        "noise": "hansa.data.shifts:InputNoise",
    },
    "model": {
        "linear": "hansa.models.dense:Linear",
        "mlp": "hansa.models.dense:MLP",
        "adapter": "hansa.models.dense:Adapter",
        "column-tokens": "hansa.models.tokens:ColumnTokens",
        "encoders": "hansa.models.encoders:Encoders",
        "cnn": "hansa.models.convolutional:CNN",
        "lenet": "hansa.models.convolutional:LeNet",
        "leaf-cnn": "hansa.models.convolutional:LeafCNN",
        "char-lstm": "hansa.models.recurrent:CharLSTM",
        "mobilenetv2": "hansa.models.mobilenet:MobileNetV2",
        "efficientnet-lite": "hansa.models.efficientnet:EfficientNetLiteModel",
        "transformers": "hansa.models.transformers:TransformersModel",
        "standardised": "hansa.models.standardised:Standardised",
        "random-features": "hansa.models.random_features:RandomFeaturesModel",
        "random-projection": "hansa.models.random_projection:RandomProjection",
        "deep-random-features": "hansa.models.deep_random_features:DeepRandomFeatures",
        "latent": "hansa.models.latent:Latent",
        "lora": "hansa.models.lora:Lora",
        "module": "hansa.models.module:Module",
        "given": "hansa.models.given:GivenModule",
    },
    "extractor": {
        "efficientnet-lite": "hansa.features.efficientnet:EfficientNetLite",
        "transformers": "hansa.features.transformers:Transformers",
        "module": "hansa.features.module:FrozenModule",
    },
    "algorithm": {
        "fedavg": "hansa.algorithms.fedavg:FedAvg",
        "fed3r": "hansa.algorithms.fed3r:Fed3R",
        "fed3r-select": "hansa.algorithms.fed3r_select:Fed3RSelect",
        "fed3r-ft": "hansa.algorithms.fed3r_ft:Fed3RFT",
        "fedncm": "hansa.algorithms.fedncm:FedNCM",
        "lda": "hansa.algorithms.lda:LDA",
        "fedcof": "hansa.algorithms.fedcof:FedCOF",
        "deepafl": "hansa.algorithms.deepafl:DeepAFL",
        "describe": "hansa.algorithms.describe:Describe",
        "calibrate": "hansa.algorithms.calibrate:Calibrate",
        "oll": "hansa.algorithms.oll:OLL",
        "checkpoint": "hansa.algorithms.checkpoint:Checkpoint",
        "input-scale": "hansa.algorithms.input_scale:InputScale",
        "feature-scale": "hansa.algorithms.feature_scale:FeatureScale",
        "personal": "hansa.algorithms.personal:Personal",
        "fedprox": "hansa.algorithms.fedprox:FedProx",
        "scaffold": "hansa.algorithms.scaffold:Scaffold",
        "feddyn": "hansa.algorithms.feddyn:FedDyn",
        "mime": "hansa.algorithms.mime:Mime",
        "mimelite": "hansa.algorithms.mimelite:MimeLite",
        "wima": "hansa.algorithms.wima:Wima",
        "guarded": "hansa.algorithms.guarded:Guarded",
        "self-guarded": "hansa.algorithms.self_guarded:SelfGuarded",
        "robust": "hansa.algorithms.robust:Robust",
        "private": "hansa.algorithms.private:Private",
        "local": "hansa.algorithms.local:Local",
        "fedavg-ft": "hansa.algorithms.fedavg_ft:FedAvgFT",
        "per-fedavg": "hansa.algorithms.perfedavg:PerFedAvg",
        "pfedme": "hansa.algorithms.pfedme:PFedMe",
        "ditto": "hansa.algorithms.ditto:Ditto",
        "l2gd": "hansa.algorithms.l2gd:L2GD",
        "fedper": "hansa.algorithms.fedper:FedPer",
        "fedrep": "hansa.algorithms.fedrep:FedRep",
        "fedbn": "hansa.algorithms.fedbn:FedBN",
        "fedsim": "hansa.algorithms.fedsim:FedSim",
        "fedalt": "hansa.algorithms.fedalt:FedAlt",
        "lg-fedavg": "hansa.algorithms.lg_fedavg:LGFedAvg",
        "feddbe": "hansa.algorithms.feddbe:FedDBE",
        "fedpcl": "hansa.algorithms.fedpcl:FedPCL",
        "fedproto": "hansa.algorithms.fedproto:FedProto",
        "fedtgp": "hansa.algorithms.fedtgp:FedTGP",
        "fedgh": "hansa.algorithms.fedgh:FedGH",
        "prototype-noise": "hansa.algorithms.prototype_noise:PrototypeNoise",
        "flic": "hansa.algorithms.flic:Flic",
        "flic-class": "hansa.algorithms.flic_class:FlicClass",
        "flic-hl": "hansa.algorithms.flic_hl:FlicHL",
        "flic-s3": "hansa.algorithms.flic_s3:FlicS3",
        "hetfedrep": "hansa.algorithms.hetfedrep:HetFedRep",
        "fedhenn": "hansa.algorithms.fedhenn:FedHeNN",
    },
    "objective": {
        "cross-entropy": "hansa.training.objectives:CrossEntropy",
        "squared-error": "hansa.training.objectives:SquaredError",
        "absolute-error": "hansa.training.objectives:AbsoluteError",
    },
    "augmentation": {
        "flip": "hansa.training.augmentation:Flip",
        "crop": "hansa.training.augmentation:Crop",
    },
    "schedule": {
        "constant": "hansa.training.schedules:Constant",
        "exponential": "hansa.training.schedules:Exponential",
        "steps": "hansa.training.schedules:Steps",
        "cosine": "hansa.training.schedules:Cosine",
    },
    "optimiser": {
        "sgd": "hansa.server.optimisers:SGD",
        "adam": "hansa.server.optimisers:Adam",
        "yogi": "hansa.server.optimisers:Yogi",
    },
    "rule": {
        "median": "hansa.server.robust_rules:Median",
        "trimmed-mean": "hansa.server.robust_rules:TrimmedMean",
        "krum": "hansa.server.robust_rules:Krum",
        "norm-bound": "hansa.server.robust_rules:NormBound",
    },
    "orchestration": {
        "star": "hansa.orchestrate.star:Star",
        "sweep": "hansa.orchestrate.star:Sweep",
        "chains": "hansa.orchestrate.chains:Chains",
        "dropout": "hansa.orchestrate.dropout:Dropout",
        "fedseq": "hansa.orchestrate.fedseq:FedSeq",
        "fedcyclic": "hansa.orchestrate.fedseq:FedCyclic",
        "fedasyncseq": "hansa.orchestrate.fedasyncseq:FedAsyncSeq",
        "fedseq2par": "hansa.orchestrate.fedseq2par:FedSeq2Par",
    },
    "clock": {
        "drawn": "hansa.orchestrate.clock:Drawn",
        "file": "hansa.orchestrate.clock:Measured",
    },
    "distribution": {
        "constant": "hansa.orchestrate.clock:Constant",
        "lognormal": "hansa.orchestrate.clock:LogNormal",
        "uniform": "hansa.orchestrate.clock:Uniform",
        "exponential": "hansa.orchestrate.clock:Exponential",
    },
    "attack": {
        "label-flipping": "hansa.attacks.label_flipping:LabelFlipping",
    },
    "channel": {
        "secure-sum": "hansa.channels.secure_sum:SecureSum",
        "quantise": "hansa.channels.quantise:Quantise",
        "top-k": "hansa.channels.top_k:TopK",
    },
    "engine": {
        "auto": "hansa.engines.auto:Auto",
        "vectorised": "hansa.engines.vectorised:Vectorised",
        "serial": "hansa.engines.serial:Serial",
        "processes": "hansa.engines.processes:Processes",
        "ray": "hansa.engines.cluster:Ray",
        "flower": "hansa.engines.flower:Flower",
    },
    "carrier": {
        "superlink": "hansa.engines.relay:SuperLink",
        "loopback": "hansa.engines.carriers:Loopback",
    },
    "metric": {
        "accuracy": "hansa.metrics.pieces:Accuracy",
        "balanced-accuracy": "hansa.metrics.pieces:BalancedAccuracy",
        "f1": "hansa.metrics.pieces:F1",
        "auc": "hansa.metrics.pieces:AUC",
        "brier": "hansa.metrics.pieces:Brier",
        "ece": "hansa.metrics.pieces:CalibrationError",
        "rmse": "hansa.metrics.pieces:RMSE",
        "mae": "hansa.metrics.pieces:MAE",
        "r2": "hansa.metrics.pieces:R2",
        "loss": "hansa.metrics.pieces:Loss",
        "confusion": "hansa.metrics.pieces:Confusion",
        "f1-per-class": "hansa.metrics.pieces:F1PerClass",
    },
    "tracker": {
        "tensorboard": "hansa.results.tracking:TensorBoard",
        "wandb": "hansa.results.tracking:WeightsAndBiases",
        "mlflow": "hansa.results.tracking:MLflow",
    },
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A mark on a dataclass field that holds a piece of a kind: `Annotated[Partition, Piece("partition")]`."""

    kind: str


@functools.cache
def find(kind: str, name: str, trust: Trust = NOBODY) -> type[Any]:
    """Return the class behind a catalogue name, or behind an import path that is trusted."""
    known = CATALOGUE[kind]
    path = known.get(name, name)
    if ":" not in path:
        raise HansaError(f"There is no {kind} '{name}'.{did_you_mean(name, known)}")
    found = imported(path, kind, Trust((path,)) if name in known else trust)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise HansaError(f"The {kind} '{path}' is not a dataclass; its settings must be dataclass fields.")
    return found


def name_of(kind: str, piece: object) -> str:
    """Return the catalogue name of a piece, or its import path."""
    path = f"{type(piece).__module__}:{type(piece).__qualname__}"
    return next((name for name, known in CATALOGUE[kind].items() if known == path), path)
