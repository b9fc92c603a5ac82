"""A site's file and its process, and the relay's socket, without Flower."""

from __future__ import annotations

import grp
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.cli.deploying import tell_key
from hansa.data.federation import Federation
from hansa.data.targets import Classes
from hansa.deploy.doctor import examine
from hansa.deploy.flower_app import frames
from hansa.deploy.identity import own_key
from hansa.deploy.site import _listening, read_site, site_data, site_keys
from hansa.engines import letters, relay
from hansa.engines.letters import Answer, ClientFacts, Letter
from hansa.engines.relay import KNOWN, SOCKET, Relay, SuperLink
from hansa.errors import HansaError, HansaWarning

FILE = """classes = ["cat", "dog", "owl"]
[data]
source = { name = "npz", path = "data.npz" }
partition = "natural"
test = { kind = "local" }
"""
NOW = time.time_ns() // 1000


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of two clients that has never seen a cat."""
    rng = np.random.default_rng(0)
    y = np.array(["owl", "dog"])[np.arange(20) % 2]
    who, test = np.array(["x", "y"])[np.arange(20) // 10], np.arange(20) % 5 == 4
    np.savez(tmp_path / "data.npz", x=rng.random((20, 3), np.float32), y=y, client=who, is_test=test)
    (tmp_path / "site.toml").write_text(FILE)
    return tmp_path / "site.toml"


def test_labels_are_numbered_as_all_sites_agreed(site: Path) -> None:
    made = site_data(read_site(site))
    assert made.target == Classes(("cat", "dog", "owl")) and set(made.clients) == {"x", "y"}
    assert sorted({int(one) for one in made.clients["x"].train.y}) == [1, 2]
    site.write_text(FILE.replace('"owl"', '"emu"'))
    with pytest.raises(HansaError, match="a class 'owl' that is not among 'classes'"):
        site_data(read_site(site))


def test_a_site_of_one_client_may_name_it(site: Path) -> None:
    site.write_text('client = "ward"\n' + FILE)
    with pytest.raises(HansaError, match="names one client, 'ward', and its data has 2"):
        site_data(read_site(site))
    site.write_text('client = "ward"\n' + FILE.replace('"natural"', '{ name = "iid", clients = 1 }'))
    assert list(site_data(read_site(site)).clients) == ["ward"]


TABLE = """classes = ["no", "yes"]
client = "ward"
{inputs}
[data]
source = {{ name = "csv", path = "data.csv", label = "ill" }}
partition = {{ name = "iid", clients = 1 }}
test = {{ kind = "local" }}
[node]
superlink = "127.0.0.1:1"
certificates = "ca.crt"
key = "node.key"
"""


def test_inputs_are_those_that_all_sites_agreed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many columns in another order, each would train the weights of another; nobody else could tell."""
    monkeypatch.setattr("hansa.deploy.doctor.version", lambda name: "1.41.9")
    rows = "\n".join(f"{120 + k},{'mf'[k % 2]},{40 + k},{('no', 'yes')[k % 3 == 0]}" for k in range(20))
    (tmp_path / "data.csv").write_text(f"pressure,sex,age,ill\n{rows}\n")

    def says(inputs: str) -> str:
        (tmp_path / "site.toml").write_text(TABLE.format(inputs=inputs))
        return next(one.told for one in examine(tmp_path / "site.toml") if one.what == "data")

    told = "a sample has the shape [4]; inputs pressure, sex = f, sex = m, age"
    assert says("").endswith(told) and says('inputs = ["pressure", "sex = f", "sex = m", "age"]').endswith(told)
    assert "Input 1 of client 'ward' is 'pressure', and 'inputs' in the site file has 'age'" in says('inputs = ["age"]')
    assert "Input 4 of client 'ward' is 'age', and 'inputs' in the site file has 'none'" in says(
        'inputs = ["pressure", "sex = f", "sex = m"]'
    )
    assert "have the shape [4], and 'shape' in the site file says [3]" in says("shape = [3]")
    assert says("shape = [4]").endswith(told)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("classes = 3", "classes' should be"),
        ("[data", "cannot be read"),
        (FILE + "sudo = true", "no setting 'data.sudo'"),
        (FILE.replace('"natural"', '"evil:Thing"'), "is code outside the catalogue"),
    ],
)
def test_a_bad_site_file_is_refused_in_a_sentence(site: Path, text: str, says: str) -> None:
    site.write_text(text)
    with pytest.raises(HansaError, match=says):
        read_site(site)


def test_a_site_file_that_is_not_there_is_told_in_our_words(site: Path) -> None:
    for path in (site.parent / "none.toml", site.parent):
        with pytest.raises(HansaError, match=f"^There is no site file '{path}': give the 'site.toml' of the folder"):
            read_site(path)


def ask(path: Path, letter: bytes) -> Answer:
    """What a site's process answers, by the very code of Flower's side."""
    with socket.socket(socket.AF_UNIX) as to:
        to.connect(str(path))
        frames.send(to, {}, [letter])
        _, (answer,) = frames.receive(to)
    return letters.read_answer(answer)[0]


def test_a_site_is_a_process_that_answers_until_it_is_asked_to_stop(site: Path) -> None:
    command = [sys.executable, "-c", "from hansa.cli import main; main()", "site", "serve", str(site)]
    process, path = subprocess.Popen(command, stderr=subprocess.PIPE, text=True), site.parent / "site.sock"
    assert process.stderr is not None
    assert "2 clients with 16 training samples" in process.stderr.readline()
    made = [path, *site.parent.glob("states.sqlite*")]
    assert len(made) > 1 and all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in made)
    assert [one.client for one in ask(path, letters.write(Letter(NOW, 1), [])).clients] == ["x", "y"]
    with socket.socket(socket.AF_UNIX) as odd:  # somebody who speaks otherwise, and somebody who hangs up
        odd.connect(str(path))
        odd.sendall(b"GET / HTTP/1.1\r\n\r\n" * 2)
    with socket.socket(socket.AF_UNIX) as odd:
        odd.connect(str(path))
    with socket.socket(socket.AF_UNIX) as odd:  # somebody who says that a terabyte follows
        odd.connect(str(path))
        odd.sendall(struct.pack("<3Q", 1, 2, 2**40) + b"{}")
        assert odd.recv(1) == b""
    assert "cannot be" in process.stderr.readline() and "closed the connection" in process.stderr.readline()
    assert "is larger than is read here" in process.stderr.readline()
    assert ask(path, letters.write(Letter(NOW, 1, "phase"), [])).unknown
    assert "came before" in ask(path, letters.write(Letter(NOW, 1, "phase"), [])).refused
    assert "A letter was not carried out: Letter 1 came before" in process.stderr.readline()
    assert ask(path, letters.write(Letter(NOW, 2, "phase"), [])).refused == ""
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0 and not path.exists()


def test_a_sites_key_is_made_once_and_stays_there(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    for _ in range(2):
        tell_key(site)
    first, second = capsys.readouterr().out.splitlines()[:2], capsys.readouterr()
    key = own_key(site.parent / "identity.key")
    assert first == [f'"x" = "{key}"', f'"y" = "{key}"'] and not second.out
    assert stat.S_IMODE((site.parent / "identity.key").stat().st_mode) == 0o600
    file = read_site(site)
    assert site_keys(file, ["x", "y"]) is None
    known = replace(file, members={"x": key, "y": key, "z": "ab" * 32}, fewest=2)
    keys = site_keys(known, ["x", "y"])
    assert keys is not None and set(keys.registered) == {"x", "y", "z"} and keys.fewest == 2 and not keys.only
    for odd, says in (
        (replace(file, secure=True), "needs the keys of all clients under"),
        (replace(known, members={"x": key, "y": "ab" * 32}), "this site's own key for its client 'y'"),
        (replace(known, members={"x": "ff", "y": key}), "must be 64 hexadecimal digits"),
    ):
        with pytest.raises(HansaError, match=says):
            site_keys(odd, ["x", "y"])


def test_a_socket_may_be_opened_to_a_group(tmp_path: Path) -> None:
    own = grp.getgrgid(os.getgid()).gr_name
    for group, mode in (("", 0o600), (own, 0o660)):
        with _listening(tmp_path / "s", group):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
    with (
        pytest.raises(HansaError, match="group 'nobody-here' of the site file"),
        _listening(tmp_path / "s", "nobody-here"),
    ):
        pass


# ----------------------------------------------------------------------------------------------------------- the server


class FakeRelay:
    """A relay whose sites answer as told; those without an answer are not connected."""

    def __init__(self, folder: Path, answers: Mapping[str, Answer | bytes | str]):
        self.answers = answers
        self.link = socket.socket(socket.AF_UNIX)
        self.link.bind(str(folder / SOCKET))
        self.link.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                asking, _ = self.link.accept()
            except OSError:
                return
            with asking:
                head, _ = frames.receive(asking)
                if head["kind"] == "nodes":
                    frames.send(asking, {"nodes": sorted(self.answers)}, [])
                    continue
                for site in head["sites"]:
                    told = self.answers[site]
                    if isinstance(told, str):
                        frames.send(asking, {"site": site, "error": told}, [])
                    else:
                        data = told if isinstance(told, bytes) else letters.write(told, [])
                        frames.send(asking, {"site": site}, [data])
                frames.send(asking, {"end": True}, [])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def says(*clients: str, classes: tuple[str, ...] = ("0", "1"), width: int = 3) -> Answer:
    facts = tuple(ClientFacts(name, 10, 2, 0, (width,), False) for name in clients)
    return Answer(clients=facts, target={"kind": "classes", "names": list(classes)})


def test_sites_say_who_is_there(folder: Path) -> None:
    FakeRelay(folder, {"north": says("b", "a"), "south": says("c")})
    made = SuperLink(str(folder)).federation()
    assert isinstance(made, Federation) and list(made.clients) == ["a", "b", "c"] and made.sizes()["a"] == 10
    assert made.inputs()["c"].shape == (3,) and not made.integers and made.class_names == ("0", "1")
    with SuperLink(str(folder)).open(None) as carrier:  # type: ignore[arg-type]
        assert carrier.homes == {"a": "north", "b": "north", "c": "south"}


def test_a_site_that_is_away_is_known_by_what_it_said(folder: Path) -> None:
    first = FakeRelay(folder, {"north": says("a"), "south": says("c")})
    before = SuperLink(str(folder)).federation()
    first.link.close()
    (folder / SOCKET).unlink()
    FakeRelay(folder, {"north": says("a"), "south": "it is not connected"})
    with pytest.warns(HansaWarning, match="Site 'south' did not say who is there: it is not connected"):
        assert SuperLink(str(folder)).federation().digest == before.digest
    assert (folder / KNOWN).exists()


def test_sites_of_other_columns_are_told(folder: Path) -> None:
    """By a digest of what their inputs stand for; what is no table, or of another width, has nothing to mix up."""

    def site(client: str, inputs: str, width: int = 3) -> Answer:
        one = says(client, width=width)
        return replace(one, clients=(replace(one.clients[0], inputs=inputs),))

    with pytest.warns(HansaWarning, match="Sites 'north' and 'west' have as many columns, and other ones or in"):
        relay.federation_of({"north": site("a", "1"), "south": site("b", "1"), "west": site("c", "2")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        relay.federation_of({"north": site("a", "1"), "south": site("b", ""), "west": site("c", "2", 4)})


def test_a_site_that_claims_anothers_client_is_told_and_not_remembered(folder: Path) -> None:
    first = FakeRelay(folder, {"north": says("a"), "south": says("a", "c")})
    with pytest.raises(HansaError, match="'north' and 'south' both have a client 'a'"):
        SuperLink(str(folder)).federation()
    first.link.close()
    (folder / SOCKET).unlink()
    FakeRelay(folder, {"north": says("a")})  # the other one is away
    assert list(SuperLink(str(folder)).federation().clients) == ["a"]


ODD_CLIENTS = {
    "size": ClientFacts("b", -1, 0, 0, (3,), False),
    "test_size": ClientFacts("b", 1, -1, 0, (3,), False),
    "input_shape": ClientFacts("b", 1, 1, 0, (0,), False),
}


@pytest.mark.parametrize("odd", [*ODD_CLIENTS.values(), b"no letter", {"kind": "sudo"}], ids=str)
def test_a_site_that_says_something_odd_is_left_out_by_name(folder: Path, odd: Any) -> None:
    told: Answer | bytes = odd if isinstance(odd, bytes) else replace(says("b"), clients=(odd,))
    if isinstance(odd, dict):
        told = replace(says("b"), target=odd)
    FakeRelay(folder, {"north": says("a"), "south": told})
    with pytest.warns(HansaWarning, match="Site 'south' did not say who is there"):
        assert list(SuperLink(str(folder)).federation().clients) == ["a"]


def test_sites_that_do_not_fit_together_are_refused(folder: Path) -> None:
    with pytest.raises(HansaError, match="'north' and 'south' both have a client 'a'"):
        relay.federation_of({"north": says("a"), "south": says("a")})
    with pytest.raises(HansaError, match="'north' and 'south' do not predict the same"):
        relay.federation_of({"north": says("a"), "south": says("b", classes=("1", "0"))})
    tokens = replace(says("b"), clients=(ClientFacts("b", 1, 1, 0, (3,), True),))
    with pytest.raises(HansaError, match="no model reads both"):
        relay.federation_of({"north": says("a"), "south": tokens})
    with pytest.raises(HansaError, match=r"cannot be reached .*: start it with 'hansa deploy up"):
        Relay(folder / SOCKET, {}).sites()
