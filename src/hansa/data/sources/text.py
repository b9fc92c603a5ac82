"""Text by speaker for next-character prediction: one file of `NAME:` blocks, or a file for every speaker."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hansa.data.checks import share, whole
from hansa.data.dataset import Array, Dataset, Samples
from hansa.data.labels import require_two_classes
from hansa.data.sources.files import client_names, several
from hansa.data.targets import Classes
from hansa.errors import HansaError, require


@dataclass(frozen=True)
class Text:
    """Windows of characters and the character that follows each; every speaker is a client.

    In one file a speaker's block starts, after an empty line, with a line `NAME:`.  A folder or pattern means a file
    for each speaker.  The last part of every speaker's text is the test set, and no window crosses the cut.
    """

    path: str
    window: int = 80
    min_characters: int = 500  # speakers with less text are left out
    stride: int = 10  # from one window to the next
    test_fraction: float = 0.2
    speaker: str = "[A-Z][A-Za-z ]*"  # what a speaker's name looks like, as a regular expression

    def __post_init__(self) -> None:
        whole(self, "window")
        whole(self, "min_characters", 0)
        whole(self, "stride")
        share(self, "test_fraction", zero=True)
        try:
            re.compile(self.speaker)
        except re.error as error:
            raise HansaError(
                f"The 'speaker' of Text must be a regular expression. Got {self.speaker!r}: {error}."
            ) from error

    def load(self) -> Dataset:
        """Read the text and number its characters in sorted order over the whole of it."""
        files, each = several(self.path, ".txt", "text file")
        texts = [_read(file) for file in files]
        spoken = {name: [text] for name, text in zip(client_names(files), texts, strict=True)}
        spoken = spoken if each else self.speakers(texts[0])
        require(
            len(spoken) > 0, f"'{self.path}' has no line 'NAME:' after an empty line; set 'speaker' to how names look."
        )
        characters = np.unique(np.concatenate([_codes(text) for text in texts]))
        return self._windows(spoken, characters)

    def speakers(self, text: str) -> dict[str, list[str]]:
        """Return every speaker's words, block by block; speakers without words are left out."""
        starts = list(re.finditer(rf"(?:\A|(?<=\n\n))({self.speaker}):\n", text))
        spoken: dict[str, list[str]] = {}
        for start, following in itertools.zip_longest(starts, starts[1:]):
            block = text[start.end() : following.start() if following else None].strip()
            if block:
                spoken.setdefault(start[1], []).append(block)
        return spoken

    def _windows(self, spoken: dict[str, list[str]], characters: Array) -> Dataset:
        train: dict[str, Array] = {}
        test: dict[str, Array] = {}
        for name, blocks in spoken.items():
            codes = np.searchsorted(characters, _codes("\n".join(blocks)))
            cut = len(codes) - round(self.test_fraction * len(codes))
            if sum(map(len, blocks)) >= self.min_characters and cut > self.window:
                train[name] = self._cut(codes[:cut])
                if len(codes) - cut > self.window:
                    test[name] = self._cut(codes[cut:])
        require(
            len(train) > 0,
            f"No speaker of '{self.path}' has enough text; "
            f"lower 'min_characters' (now {self.min_characters}) or 'window' (now {self.window}).",
        )
        note = f"{len(train)} of {len(spoken)} speakers have enough text; the others are left out."
        target = Classes(tuple(chr(code) for code in characters))
        samples, client = _side_by_side(train)
        require_two_classes(samples.y, target, f"The text '{self.path}'")
        held, client_test = _side_by_side(test) if test else (None, None)
        notes, known = (note,) if len(train) < len(spoken) else (), "".join(target.names)
        return Dataset(samples, target, held, client, client_test, notes=notes, characters=known)

    def _cut(self, codes: Array) -> Array:
        """Cut windows with the next character as last column."""
        return np.lib.stride_tricks.sliding_window_view(codes, self.window + 1)[:: self.stride]


def _side_by_side(windows: dict[str, Array]) -> tuple[Samples, Array]:
    rows = np.concatenate(list(windows.values())).astype(np.int64)
    client = np.repeat(np.asarray(list(windows)), [len(part) for part in windows.values()])
    return Samples(np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1])), client


def _codes(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise HansaError(f"The text file '{file}' is not UTF-8; convert it first.") from error
