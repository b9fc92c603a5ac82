"""A real federation on Flower: three sites with TLS and keys of their own, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hansa
from hansa.deploy import federation
from hansa.deploy.doctor import examine
from hansa.deploy.flower_tools import free_port
from hansa.engines.relay import Relay
from hansa.engines.serial import Serial, SerialSession
from hansa.engines.session import ClientFailed, Lane, PhaseContext, RoundServer
from hansa.io import wire
from hansa.payload import Update
from hansa.plan.files import read_plan
from hansa.task import Task
from hansa.tree import Tree, equal
from three_sites import SITES, write_sites

pytestmark = [pytest.mark.flower, pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc")]
PLAN = """
[data]
source = { name = "npz", path = "all.npz" }
partition = "natural"
test = { kind = "local" }
[[phases]]
algorithm = "fed3r"
[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.05, batch_size = 16 } }
rounds = 3
orchestration = { name = "star", fraction = 1.0 }
"""


@dataclass
class Running:
    """A federation that runs: its folder, and the process of every site."""

    folder: Path
    sites: dict[str, subprocess.Popen[bytes]]

    def start(self, site: str) -> None:
        path = self.folder / "sites" / site
        with (path / "log").open("ab") as log:
            self.sites[site] = command(["site", "serve", str(path / "site.toml")], stdout=log, stderr=log)

    def kill(self, site: str) -> None:
        """Kill a site and its node, at once."""
        self.sites[site].kill()
        self.sites[site].wait()
        node = int((self.folder / "sites" / site / "node.pid").read_text())
        os.killpg(node, signal.SIGKILL)

    def entered(self, site: str) -> bool:
        """Whether a site's node, since it was started last, was let in by the server."""
        return "SuperNode ID" in (self.folder / "sites" / site / "node.log").read_text()

    def connected(self) -> set[str]:
        return {site for site, there in federation.status(self.folder)["sites"].items() if there}


def command(words: Sequence[str], **kw: Any) -> subprocess.Popen[bytes]:
    """The command line, in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", "from hansa.cli import main; main()", *words], **kw)


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    made = Running(folder / "fed", {})
    np.savez(folder / "all.npz", **write_sites(made.folder, 600))
    (folder / "plan.toml").write_text(PLAN)
    try:
        federation.up(made.folder)
        for site in SITES:
            made.start(site)
        until(lambda: made.connected() == set(SITES))
        yield made
    finally:
        for process in made.sites.values():
            process.terminate()
        for process in made.sites.values():
            process.wait(30)
        with suppress(ProcessLookupError):
            federation.down(made.folder)


class Absent(Serial):
    """The serial engine, with a client that does not answer in the last round."""

    @contextmanager
    def open(self, context: PhaseContext) -> Iterator[SerialSession]:
        yield AbsentSession(context=context)


class AbsentSession(SerialSession):
    def one(self, task: Task, lane: Lane, server: RoundServer) -> Update | None:
        if lane.chain != ("c",) or task.round < 2:
            return super().one(task, lane, server)
        server.refuse("c", ClientFailed("gone"))
        return None


def model(run: Path) -> Tree:
    return wire.unpack((run / "model.safetensors").read_bytes())[0]


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("fl")) as made:
        yield made


def test_a_run_whose_server_is_killed_gives_the_bits_of_the_serial_engine(fed: Running) -> None:
    here = fed.folder.parent
    serial = hansa.run(here / "plan.toml", out=here / "serial", changes=["engine=serial"])
    first = command(["deploy", "run", str(fed.folder), str(here / "plan.toml"), "--out", str(here / "run")])
    records = here / "run" / "rounds.jsonl"
    until(lambda: records.exists() and records.read_bytes().count(b"\n") >= 2, 120)
    first.kill()
    first.wait()
    again = command(["resume", str(here / "run")])
    assert again.wait(120) == 0
    found = hansa.Run.open(here / "run")
    assert equal(model(here / "run"), model(serial.path))
    for left, right in zip(found.rounds, serial.rounds, strict=True):
        same = ("clients", "failed", "bytes_up", "bytes_down", "bytes_evaluate", "flops")
        assert {key: left[key] for key in same} == {key: right[key] for key in same}
        assert left["metrics"] == pytest.approx(right["metrics"], rel=1e-5)
    assert fed.connected() == set(SITES)


def test_a_node_that_sends_no_letter_costs_its_own_site() -> None:
    from hansa.deploy.flower_app.server import _answer

    for content in ({}, {"letter": {}}, {"letter": {"0": 1}}, None):
        reply: Any = SimpleNamespace(has_error=lambda: False, content=content)
        assert "its node sent no letter" in str(_answer(reply))


def test_who_is_connected_can_be_seen_while_a_site_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hansa.deploy.flower_app import server

    monkeypatch.setattr(server, "_message", lambda *_: None)  # which Flower makes in an app of its own alone

    class Nodes:
        """Flower's side, with a node that never answers."""

        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(name="a", node_id=1)]

        def push_messages(self, messages: list[Any]) -> list[str]:
            pushed.set()
            return ["1"]

        def pull_messages(self, waiting: list[str]) -> list[Any]:
            return []

    pushed, path = threading.Event(), tmp_path / "link.sock"
    context: Any = SimpleNamespace(run_config={"socket": str(path)})
    threading.Thread(target=server.main, args=(Nodes(), context), daemon=True).start()
    until(path.exists)
    relay = Relay(path)
    threading.Thread(target=lambda: list(relay.ask({"a": b"letter"}, 30.0)), daemon=True).start()
    assert pushed.wait(10)
    began = time.monotonic()
    assert relay.sites() == ["a"] and time.monotonic() - began < 10


OUTSIDER = """
import encodings.idna, encodings.latin_1, http.client, os, ssl, sys
os.setuid(int(sys.argv[3]))
told = ("127.0.0.1", int(sys.argv[1]))
ask = http.client.HTTPSConnection(*told, context=ssl._create_unverified_context())
ask = ask if sys.argv[4] == "tls" else http.client.HTTPConnection(*told)
ask.request("POST", sys.argv[2], headers=dict(pair.split("=") for pair in sys.argv[5:]))
print(ask.getresponse().status)
"""


def test_the_server_and_its_nodes_are_controlled_by_their_own_account_alone(fed: Running) -> None:
    """Flower asks nobody who they are before it runs their app; what nodes ask is for registered keys."""
    port = str(federation.read(fed.folder).port)
    node = (Path("/proc") / (fed.folder / "sites" / "a" / "node.pid").read_text() / "cmdline").read_bytes().split(b"\0")
    own = node[node.index(b"--port") + 1].decode()

    def asked(path: str, account: int = os.getuid(), at: str = port, *heads: str) -> int:
        words = [sys.executable, "-I", "-c", OUTSIDER, at, path, str(account), "tls" if at == port else "plain", *heads]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    message = "Content-Type=application/protobuf"
    assert asked("/v1/control/list-nodes") == 415  # let through, to where it is no message of Flower's
    assert asked("/v1/control/list-nodes", os.getuid(), port, "X-Forwarded-For=127.0.0.1") == 403
    assert asked("/v1/runtime/acquire-task", os.getuid(), own) == 415
    for host in ("Host=here", "Host=here?", "Host=here/v1/"):  # by which a path could be made to look like another
        for path in ("register-node", "activate-node", "pull-messages", "push-messages", "get-fab", "pull-object"):
            assert asked(f"/v1/fleet/{path}", os.getuid(), port, message, host) == 401
    if os.geteuid() == 0:
        assert asked("/v1/control/list-nodes", 65534) == 403 and asked("/docs", 65534) == 403
        assert asked("/v1/fleet/activate-node", 65534) == 415
        assert asked("/v1/runtime/acquire-task", 65534, own) == 403


def test_doctor_tells_why_a_site_cannot_take_part(fed: Running) -> None:
    site = fed.folder / "sites" / "a"
    found = list(examine(site / "site.toml"))
    assert [one.what for one in found][-1] == "key" and all(one.good for one in found), found

    def spoilt(name: str, old: str, new: str) -> tuple[str, str]:
        text = (site / "site.toml").read_text()
        assert old in text
        path = site / f"{name}.toml"
        path.write_text(text.replace(old, new).replace('"site.toml"', f'"{name}.toml"'))
        *good, last = examine(path)
        assert all(one.good for one in good) and not last.good
        return last.what, last.told

    other = fed.folder.parent / "other"
    federation.init(other, ["a"], "127.0.0.1", free_port())
    wrong, key = str(other / "server" / "ca.crt"), str(other / "sites" / "a" / "node.key")
    assert spoilt("authority", "ca.crt", wrong)[0] == "authority"
    what, told = spoilt("address", "127.0.0.1:", "127.0.0.1:1")
    assert what == "address" and "Nobody answers" in told
    what, told = spoilt("key", 'key = "node.key"', f'key = "{key}"')
    assert what == "key" and "does not let this site's key" in told
    assert spoilt("data", "data.npz", "none.npz")[0] == "data"


def test_a_run_of_secure_sums_goes_on_without_a_site_that_is_killed(fed: Running) -> None:
    """Killed with its node after two rounds, as the power goes, when it had shared the secrets of the third sum.

    The result is that of the serial engine without it, to the bit: two of three open the sum of their own uploads.
    """
    here, channel = fed.folder.parent, "channel={name='secure-sum', fewest=2}"
    plan = read_plan(here / "plan.toml", ["engine=serial", channel])
    absent = hansa.run(replace(plan, engine=Absent()), out=here / "absent", trust=True)

    def kill(record: dict[str, Any]) -> None:
        if record["phase_name"] == "fedavg" and record["round"] == 1:  # which is told with the second round's answers
            fed.kill("c")

    engine = {"name": "flower", "patience": 45.0, "carrier": {"folder": str(fed.folder)}}
    change = f"engine={json.dumps(engine).replace(':', '=')}"
    with pytest.warns(hansa.errors.HansaWarning, match="Site 'c' did not evaluate 'c'"):
        found = hansa.run(here / "plan.toml", out=here / "killed", changes=[change, channel], watchers=[kill])
    assert [sorted(one["failed"]) for one in found.rounds] == [[], [], [], ["c"]]
    assert [one["channel"]["answered"] for one in found.rounds] == [3, 3, 3, 2]
    assert [one["trips"] for one in found.rounds] == [3, 3, 2, 2]
    assert "site 'c' cannot be used" in found.rounds[-1]["failed"]["c"]
    assert equal(model(found.path), model(absent.path))
    fed.start("c")  # which is let in again once the server has noticed, as the next test sees


def test_a_superlink_that_was_killed_is_started_again(fed: Running) -> None:
    """Sites come back by themselves, also one that had been killed."""
    number = int((fed.folder / "server" / "pid").read_text())
    os.kill(number, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(number, 0)
    assert not federation.status(fed.folder)["running"]
    federation.up(fed.folder)
    until(lambda: all(fed.entered(site) for site in SITES), 120)
    until(lambda: fed.connected() == set(SITES), 60)
    here = fed.folder.parent
    engine = {"name": "flower", "carrier": {"folder": str(fed.folder)}}
    changes = [f"engine={json.dumps(engine).replace(':', '=')}", "phases.1.rounds=1"]
    found = hansa.run(here / "plan.toml", out=here / "later", changes=changes)
    assert [one["failed"] for one in found.rounds] == [{}, {}]
