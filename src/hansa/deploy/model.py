"""A model as a client deploys it: taken from a run or from a file of its own, and used to predict."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors

from hansa.contract import Algorithm
from hansa.data.arrays import inputs
from hansa.data.dataset import Array, Dataset, Samples, Source, read_by_models
from hansa.data.frames import is_frame, to_arrow
from hansa.data.pixel_scale import standardised
from hansa.data.sources.encoding import Encoding
from hansa.data.sources.files import existing
from hansa.data.sources.mixed import Mixed
from hansa.data.sources.table import TableSource
from hansa.data.targets import Real, Target, class_names_of, target_from_table
from hansa.deploy.restored import last_phase, remaining
from hansa.errors import HansaError, did_you_mean, require
from hansa.features.extract import Extractor, extract_features
from hansa.io.codec import from_table, to_table
from hansa.io.files import write_whole
from hansa.io.registry import Piece
from hansa.io.store import DiskStore, checkpoint_of
from hansa.io.trust import Trust, TrustLike
from hansa.lazy import Tensor, nn, torch
from hansa.metrics.suite import BLOCK
from hansa.models.given import given_model
from hansa.models.lora import merged
from hansa.models.parts import reader_of
from hansa.plan.assemble import Data, assemble
from hansa.plan.files import read_plan
from hansa.plan.schema import Plan
from hansa.results.notebook import table_html
from hansa.results.reader import Run
from hansa.results.writer import RunFolder
from hansa.running.phase_run import PhaseRun, restore
from hansa.task import Task
from hansa.task_table import expected_shapes, task_from_table, task_to_table
from hansa.tree import Tree

FORMAT = 2  # of model files; a file of a newer format is refused
FEW = 20  # clients that an error may list
KEY = "hansa"  # of the metadata that makes a safetensors file a model file


@dataclass(frozen=True)
class ModelCard:
    """All that a model file says beside its weights: whatever it takes to use them where nothing else is."""

    task: dict[str, Any]  # as `task_to_table` writes it
    algorithm: Annotated[Algorithm, Piece("algorithm")]
    target: dict[str, Any]  # as `target_to_table` writes it
    leaves: dict[str, tuple[int, ...]]  # the shapes of its weights: the network's, and what an algorithm has besides
    labels: tuple[int, ...] | None = None  # under OLL the classes it can predict
    features: Annotated[tuple[Extractor, ...], Piece("extractor")] = ()  # what turns raw samples into its inputs
    size: int | None = None  # pixels square that images are resized to
    table: Annotated[TableSource | None, Piece("source")] = None  # how the training table was read …
    encoding: Encoding | None = None  # … or a frame given, and turned into numbers
    client: str | None = None  # whose model it is; None is everyone's
    run: str = ""
    phase: str = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        outputs = self.read_target().outputs
        good = self.labels is None or (len(self.labels) > 0 and all(0 <= label < outputs for label in self.labels))
        require(good, f"The 'labels' of a model must be class numbers below {outputs}. Got {self.labels}.")
        require(self.size is None or self.size >= 1, f"The 'size' of images must be at least 1. Got {self.size}.")

    def read_target(self) -> Target:
        """Return what the model predicts."""
        return target_from_table(self.target)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the network reads it."""
        return tuple(self.task["input_shape"])

    def read_task(self, where: str, trust: Trust) -> Task:
        """Return what the algorithm needs to know to read the weights; `where` is the place of the card."""
        mask = None
        if self.labels is not None:
            mask = torch.zeros(self.read_target().outputs, dtype=torch.bool)
            mask[list(self.labels)] = True
        return task_from_table(self.task, labels=mask, where=f"{where}.task", trust=trust)


@dataclass(frozen=True, eq=False, repr=False)
class DeployedModel:
    """A trained model that needs neither its run nor its data to predict."""

    card: ModelCard
    weights: Tree
    task: Task  # what the algorithm needs to know to read the weights

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of `probabilities`; a model of real targets has none."""
        return class_names_of(self.card.read_target(), "A list of classes")

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the columns of `outputs`: classes, or real targets."""
        return self.card.read_target().names

    @property
    def real(self) -> bool:
        """Whether it predicts real numbers, not classes."""
        return isinstance(self.card.read_target(), Real)

    def predict(self, x: Any) -> Array:
        """Return the name of the most probable class of every sample, or its real targets (samples × columns)."""
        out = self.outputs(x)
        chosen: Array = out.numpy() if self.real else np.asarray(self.class_names)[out.argmax(1).numpy()]
        return chosen

    def probabilities(self, x: Any) -> Array:
        """Return samples × classes: the softmax of the logits, 0 for a class that the model cannot predict."""
        require(not self.real, "A model of real targets has no probabilities; use 'predict'.")
        found: Array = self.outputs(x).softmax(1).numpy()
        return found

    def outputs(self, x: Any) -> Tensor:
        """Return logits, or real targets, of tensors it reads directly or arrays as a data source delivers them."""
        x = self.inputs(x)
        try:
            with torch.no_grad():
                forward = functools.partial(self.card.algorithm.outputs, self.task, self.weights)
                return torch.cat([forward(block) for block in x.split(BLOCK)])
        except IndexError as error:  # an embedding's
            raise HansaError("The samples hold a token number that the model does not know.") from error
        except (RuntimeError, KeyError) as error:  # torch's, of weights that do not go together
            raise HansaError(f"The model cannot be applied; its weights do not fit its card: {error}.") from error

    def inputs(self, x: Any) -> Tensor:
        """Return samples as the network reads them: raw ones pass the feature extractor, images become tensors."""
        x = self._encoded(x) if is_frame(x) else x
        found = x if isinstance(x, torch.Tensor) else self.tensor(np.asarray(x))
        shape, wanted = tuple(found.shape[1:]), self.card.input_shape
        read = f"The model reads samples of shape {_times(wanted)}"
        require(found.ndim > 1 and len(found) > 0 and shape == wanted, f"{read}. Got {_times(tuple(found.shape))}.")
        return found

    def _encoded(self, frame: Any) -> Array:
        """Return a frame as numbers, its columns filled and scaled as those that were trained on."""
        encoding = self.card.encoding
        if encoding is None:
            raise HansaError("The model was not trained on a table, so it cannot read a frame; give an array.")
        numbers: Array = encoding.apply(encoding.values(to_arrow(frame), "the frame")).astype(np.float32)
        return numbers

    def tensor(self, x: Array) -> Tensor:
        """Return an array as tensors, of whatever shape it has."""
        integers = bool(self.card.task["integers"])
        if x.shape[1:] == self.card.input_shape and x.dtype.kind in ("iu" if integers else "f"):
            good = bool(np.isfinite(x).all())
            require(good, "The samples hold a NaN or Inf; fill or drop missing values first.")
            found = torch.from_numpy(x.astype(np.int64 if integers else np.float32))
            columns = bool(self.task.pixels) and x.ndim == 2  # pictures of this shape are what the network reads
            return standardised(found, self.task.pixels) if columns else found
        if self.card.features:
            return torch.from_numpy(self._features(x))
        if x.dtype.kind == "U":
            reader = reader_of(self.task.model)
            if reader is None:
                raise HansaError("The model reads numbers, and the samples are text.")
            return torch.from_numpy(reader.tokens(x))
        raw = inputs(x, "The samples", tokens=integers)
        found = read_by_models(raw[:])
        return standardised(found, self.task.pixels) if self.task.pixels and raw.dtype == np.uint8 else found

    def _features(self, x: Array) -> Array:
        try:
            raw = inputs(x, "The samples")
            unlabelled = Samples(raw, np.zeros(len(raw), np.int64))
            found = extract_features(Dataset(unlabelled, self.card.read_target()), *self.card.features)
        except HansaError as error:
            width = _times(self.card.input_shape)
            raise HansaError(f"The samples are neither features, {width} numbers each, nor raw: {error}") from error
        return found.data.train.x[:]

    def encoding(self) -> Encoding | None:
        """Return how columns of a table become inputs; None where the model was not trained on a table."""
        return self.card.encoding

    def _repr_html_(self) -> str:
        whose = "the global model" if self.card.client is None else f"the model of client '{self.card.client}'"
        many = sum(leaf.numel() for leaf in self.weights.values())
        told = {
            "of": f"{self.card.run}, phase {self.card.phase}, {whose}",
            "model": f"{type(self.task.model).__name__}, {many:,} numbers in {len(self.weights)} leaves",
            "reads": f"samples of shape {_times(self.card.input_shape)}",
            "predicts": ", ".join(self.target_names[:FEW]) + (", …" if len(self.target_names) > FEW else ""),
        }
        return table_html((), told.items())

    def __repr__(self) -> str:
        return f"DeployedModel(run={self.card.run!r}, phase={self.card.phase!r}, client={self.card.client!r})"

    def save(self, path: str | Path) -> Path:
        """Write one file with everything needed to predict elsewhere: weights, and metadata as JSON.  Never pickle."""
        path = Path(path)
        require(path.suffix == ".safetensors", f"A model file must be named '….safetensors'. Got '{path}'.")
        weights = {key: leaf.clone(memory_format=torch.contiguous_format) for key, leaf in self.weights.items()}
        from safetensors.torch import save

        write_whole(path, save(weights, metadata={KEY: json.dumps(to_table(self.card))}))
        return path


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def load_model(
    source: str | Path | Run,
    client: str | None = None,
    *,
    data: Data = None,
    model: nn.Module | None = None,
    trust: TrustLike = False,
) -> DeployedModel:
    """Load the model that a client deploys after a run's last phase, or without a client the global one.

    `source` is a run folder, or a file that `hansa save` wrote, which needs neither the run nor its data.  Where the
    run was given its data or its model as objects, `data` and `model` must be the same here; a `Run` of this process
    knows them.  Code of one's own that the folder or file names is run only where `trust` admits it: True is all of
    it, a list those import paths.
    """
    trusted = Trust.of(trust)
    if model is not None:
        given_model(model)
    if isinstance(source, Run) and data is None:
        data = source.given
    path = source.path if isinstance(source, Run) else existing(str(source), "run folder or model file")
    if path.is_dir():
        return _from_run(Run.open(path), client, data, trusted)
    found = _from_file(path, trusted)
    held = found.card.client
    whose = "the global model" if held is None else f"the model of client '{held}'"
    require(client in (None, held), f"The file '{path}' holds {whose}, not that of client '{client}'.")
    return found


def _from_file(path: Path, trust: Trust) -> DeployedModel:
    table, weights = _opened(path)
    version = table.get("format", FORMAT)
    newer = isinstance(version, int) and version > FORMAT
    require(not newer, f"The model file '{path}' has format {version}, newer than {FORMAT}: please update hansa.")
    require(version == FORMAT, f"The model file '{path}' has format {version}, older than {FORMAT}: save it again.")
    card: ModelCard = from_table(ModelCard, table, str(path), trust)
    task = card.read_task(str(path), trust)
    _check_task(card, task, path)
    _check_weights(card, task, weights, path)
    return DeployedModel(card, weights, task)


def _opened(path: Path) -> tuple[dict[str, Any], Tree]:
    """Return what a model file says of itself, and its weights."""
    try:
        with safetensors.safe_open(path, framework="pt") as stored:
            told = (stored.metadata() or {}).get(KEY)
            weights = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118, it is no mapping
        table = json.loads(told or "null")
    except Exception as error:  # the library raises errors of many kinds over damaged files
        raise HansaError(f"The file '{path}' cannot be read as a model: it is cut off, damaged or foreign.") from error
    if not isinstance(table, dict):
        raise HansaError(f"The file '{path}' holds weights alone; 'hansa save' writes files that can predict.")
    return table, weights


def _check_task(card: ModelCard, task: Task, path: Path) -> None:
    """Refuse a card that tells of another target than its network has outputs for."""
    target = card.read_target()
    fits = task.outputs == target.outputs and task.real == isinstance(target, Real)
    told = f"The model in '{path}' has {task.outputs} outputs, which are not its target's {target.outputs}"
    require(fits, f"{told}: it was changed; save it again.")


def _check_weights(card: ModelCard, task: Task, weights: Tree, path: Path) -> None:
    """Refuse weights that are not those of the card; a network too large to be theirs is not even built."""
    there = {key: tuple(leaf.shape) for key, leaf in weights.items()}
    changed = f"The weights in '{path}' are not those of the model it names: it was changed; save it again."
    require(there == card.leaves, changed)
    network = expected_shapes(task)
    needed = network if type(card.algorithm).outputs is Algorithm.outputs else network.keys() & there.keys()
    fits = all(there.get(key) == network[key] and weights[key].is_floating_point() for key in needed)
    require(fits, changed)


def finished(run: Run) -> None:
    """Refuse a run that is still to be continued."""
    going_on = f"The run in '{run.path}' is not finished: continue it with 'hansa resume {run.path}' first."
    require(run.status == "finished", going_on)


def _from_run(run: Run, client: str | None, data: Data, trust: Trust) -> DeployedModel:
    finished(run)
    plan = read_plan(run.path / "plan.toml", trust=trust)
    if client is None:
        with opened_store(run) as store:
            return _deployed(run, plan, last_phase(run, store, trust))
    check_client(run, client)
    experiment = remaining(assemble(plan, data, trust=trust).experiment, run.summary.get("forgotten", ()))
    RunFolder(run.path).write_data(experiment)  # refuses data that has changed
    with opened_store(run) as store:
        return _deployed(run, plan, restore(experiment, store, len(experiment.phases) - 1), client)


@contextmanager
def opened_store(run: Run) -> Iterator[DiskStore]:
    """Open a run's checkpoint for reading."""
    store = DiskStore(checkpoint_of(run.path), read_only=True)
    try:
        yield store
    finally:
        store.close()


def check_client(run: Run, client: str) -> None:
    """Refuse a name that no client of a run has."""
    names = run.recorded("clients")
    hint = did_you_mean(client, names)
    hint = hint if "?" in hint or len(names) <= FEW else f" It has {len(names)}, from '{names[0]}' to '{names[-1]}'."
    require(client in names, f"The run in '{run.path}' has no client '{client}'.{hint}")


def _deployed(run: Run, plan: Plan, last: PhaseRun, client: str | None = None) -> DeployedModel:
    if client is None:
        says = f"After its last phase, '{last.phase.name}', every client of '{run.path}' has a model of its own"
        own = last.algorithm.personal or "encodings" in run.data
        require(not own, f"{says}: name one with --client, such as {run.recorded('clients')[0]}.")
        task, weights = last.task, last.algorithm.model(last.task, last.server)
    else:
        task, weights = last.deployed(client)
    return as_deployed(run, plan, last, task, weights, client)


def as_deployed(
    run: Run,
    plan: Plan,
    last: PhaseRun,
    task: Task,
    weights: Tree,
    client: str | None = None,
    encoding: Encoding | None = None,
) -> DeployedModel:
    """Return weights of a run's last phase as a model that needs neither the run nor its data.

    `encoding` is that of a client whose columns the run does not know.
    """
    source, (model, weights) = source_of(plan, client), merged(task.model, weights)
    task = task if model is task.model else replace(task, model=model)
    table = source if isinstance(source, TableSource) else None
    card = ModelCard(
        task=task_to_table(replace(task, networks={})),
        algorithm=last.algorithm,
        target=run.recorded("target"),
        leaves={key: tuple(leaf.shape) for key, leaf in weights.items()},
        labels=None if task.labels is None else tuple(task.labels.nonzero().flatten().tolist()),
        features=plan.data.features if source is plan.data.source or table is None else (),
        size=getattr(source, "size", None),  # of sources that read images
        table=None if table is None else replace(table, path=""),
        encoding=encoding or _encoding(run, client),
        client=client,
        run=run.name,
        phase=last.phase.name,
    )
    return DeployedModel(card, weights, replace(task, start={}, networks={}))


def source_of(plan: Plan, client: str | None) -> Source:
    """Return where a client's samples come from: the plan's source, or its own of several."""
    source = plan.data.source
    return source.source_of(client) if client is not None and isinstance(source, Mixed) else source


def _encoding(run: Run, client: str | None) -> Encoding | None:
    """Return how a table's columns became inputs, fitted on the rows that were trained on: by all, or by the client."""
    told = run.data.get("encodings", {}).get(client) or run.recorded("encoding")
    found: Encoding | None = None if told is None else from_table(Encoding, told, str(run.path / "data.json"))
    return found
