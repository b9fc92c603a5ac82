"""Follow the README and every tutorial from `git clone` on, in empty folders with an empty HOME, and take the time.

    python -m tests.newcomer

`make`, `pip` and the environment are the clone's, all else is done in a folder of the page's own.  `make test` is left
out: it is what CI runs.
Ends with 1 where a step fails, or where the first report on own data takes longer than three minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 180.0  # seconds from `git clone` to the first report on own data
OWN = "hansa report runs/hospitals"  # the step of the README that writes it
LEFT_OUT = ("make test",)
FENCE = re.compile(r"^```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
# One interpreter a page: it reads a block of Python as JSON, a line each, and answers with a line when it is done.
READER = """
import json, sys
for line in sys.stdin:
    exec(compile(json.loads(line), "page", "exec"), globals())
    print("\\n<done>", flush=True)
"""


class Newcomer:
    """Somebody with git, make, Python and pip, and nothing else."""

    def __init__(self, home: Path) -> None:
        self.began = time.monotonic()
        self.clone, self.home = home / "hansa", home
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "SSL_CERT_FILE")}
        proxies = {
            name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()
        }
        path = f"{self.clone / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
        self.environment = {**kept, **proxies, "HOME": str(home), "PATH": path}

    def tell(self, what: str) -> None:
        """Print a step with the time since the beginning."""
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", flush=True)

    def shell(self, command: str, folder: Path) -> None:
        """Do what a page says at the command line."""
        done = subprocess.run(
            command, shell=True, cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.tell(command)
        if done.returncode:
            sys.exit(f"'{command}' ended with {done.returncode}:\n{done.stdout.decode(errors='replace')[-2000:]}")

    def follow(self, page: Path, folder: Path) -> None:
        """Do all that a page says, in order."""
        folder.mkdir()
        reader: subprocess.Popen[str] | None = None
        for language, body in blocks(page):
            if language == "bash":
                for command in commands(body):
                    in_clone = command.startswith(("make ", "pip ", ". .venv/"))
                    self.shell(command, self.clone if in_clone else folder)
            if language == "python":
                reader = reader or self.reader(folder)
                self.python(reader, body, page)
            if language == "toml" and (name := re.match(r"# hansa run (\S+\.toml)\n", body)):
                (folder / name[1]).write_text(body, encoding="utf-8")
        if reader is not None:
            reader.communicate()

    def reader(self, folder: Path) -> subprocess.Popen[str]:
        """Start the interpreter of a page."""
        call = [str(self.clone / ".venv" / "bin" / "python"), "-c", READER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(call, cwd=folder, env=self.environment, text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def python(self, reader: subprocess.Popen[str], body: str, page: Path) -> None:
        """Type a block of Python."""
        assert reader.stdin is not None and reader.stdout is not None
        if name := re.match(r"# (\w+\.py)\n", body):
            (self.home / page.stem / name[1]).write_text(body, encoding="utf-8")
        reader.stdin.write(json.dumps(body) + "\n")
        reader.stdin.flush()
        printed = []
        for line in reader.stdout:
            if line == "<done>\n":
                self.tell(f"python: {body.strip().splitlines()[0]} …")
                return
            printed.append(line)
        sys.exit(f"A block of {page.name} failed:\n{body}\n{''.join(printed)[-2000:]}")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the blocks of a page: language and text."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        yield found["language"], found["body"]


def commands(body: str) -> Iterator[str]:
    """Yield the commands of a block that are not left out."""
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#") and line.strip() not in LEFT_OUT:
            yield line.strip()


def main() -> None:
    """Follow the README, then the tutorials."""
    with tempfile.TemporaryDirectory() as home:
        new = Newcomer(Path(home).resolve())
        new.shell(f"git clone --quiet {ROOT} hansa", new.home)
        readme = new.clone / "README.md"
        assert OWN in readme.read_text(encoding="utf-8"), f"the README no longer says '{OWN}'"
        reported: list[float] = []
        tell = new.tell

        def note(what: str) -> None:
            tell(what)
            if what == OWN:
                reported.append(time.monotonic() - new.began)
                print(f"{'':9}  From git clone to the first report on own data: {reported[0]:.0f} s", flush=True)

        new.tell = note  # type: ignore[method-assign]
        for page in (readme, *sorted((new.clone / "docs").glob("tutorial-*.md"))):
            print(f"\n{page.relative_to(new.clone)}", flush=True)
            new.follow(page, new.home / page.stem)
    print(f"\nFrom git clone to the first report on own data: {reported[0]:.0f} s (limit {LIMIT:.0f} s).")
    sys.exit(reported[0] > LIMIT)


if __name__ == "__main__":
    main()
