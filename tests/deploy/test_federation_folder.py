"""The folder of a federation: its certificates and keys, sites that join, and what is refused."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from hansa.cli.deploying import add_sites, init_federation
from hansa.deploy import federation
from hansa.deploy.certificates import node_key
from hansa.deploy.site import read_site
from hansa.errors import HansaError


def test_a_federations_folder_keeps_its_secrets(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    made = federation.init(tmp_path / "fed", ["north", "south"], "fl.example.org", 9443)
    assert [path.name for path in made] == ["north", "south"]
    secret = list((tmp_path / "fed").rglob("*.key"))
    assert sorted(path.name for path in secret) == ["ca.key", "node.key", "node.key", "server.key"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secret)
    assert stat.S_IMODE((tmp_path / "fed").stat().st_mode) == 0o700  # uploads lie in Flower's database below it
    for path in made:
        assert sorted(one.name for one in path.iterdir()) == ["ca.crt", "node.key", "node.key.pub", "site.toml"]
        file = read_site(path / "site.toml")  # a start that only lacks the data
        assert file.node is not None and file.node.superlink == "fl.example.org:9443" and file.client == path.name
    assert (made[0] / "node.key").read_bytes() != (made[1] / "node.key").read_bytes()
    assert federation.status(tmp_path / "fed") == {"running": False, "sites": {"north": False, "south": False}}
    assert not federation.down(tmp_path / "fed")
    for sites, wrong in ((["a", "a"], "Two sites are called 'a'"), (["a/b"], "has '/' in it"), ([], "needs sites")):
        with pytest.raises(HansaError, match=wrong):
            federation.init(tmp_path / "other", sites, "127.0.0.1", 1)
    for host in ("fl.example.org:9092", "::1", "fédération.example.org", "a b", ""):
        with pytest.raises(HansaError, match="must be a name or an IPv4 address, without a port"):
            federation.init(tmp_path / "other", ["a"], host, 1)
    assert not (tmp_path / "other").exists()
    with pytest.raises(HansaError, match="is there already"):
        federation.init(tmp_path / "fed", ["a"], "127.0.0.1", 1)
    with pytest.raises(HansaError, match="is no federation's folder"):
        federation.up(tmp_path / "none")


def test_a_server_is_started_where_its_name_means_nothing_and_its_port_is_free(tmp_path: Path) -> None:
    """Behind a firewall the name that sites use may lead nowhere: commands reach the server by this machine."""
    pytest.importorskip("cryptography")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        federation.init(tmp_path / "fed", ["a"], "fl.example.org", port)
        assert f'"127.0.0.1:{port}"' in (tmp_path / "fed" / "server" / "flwr" / "config.toml").read_text()
        with pytest.raises(HansaError, match=f"^Another program listens at port {port}: stop it, or choose"):
            federation.up(tmp_path / "fed")
    assert not (tmp_path / "fed" / "server" / "pid").exists()


def refused(folder: Path, *words: str) -> None:
    raise HansaError("no way")


def test_a_site_may_join_a_federation_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs is told of its key at once, any other when it starts; where that fails nothing is left."""
    pytest.importorskip("cryptography")
    made = tmp_path / "fed"
    federation.init(made, ["north"], "fl.example.org", 9443)
    first = (made / "sites" / "north" / "node.key").read_bytes()
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(federation, "flwr", lambda folder, *words: told.append(words))
    (own,) = federation.add(made, ["west"])
    assert not told and federation.read(made).sites == ("north", "west")
    assert sorted(one.name for one in own.iterdir()) == ["ca.crt", "node.key", "node.key.pub", "site.toml"]
    assert read_site(own / "site.toml").client == "west" and (own / "node.key").read_bytes() != first
    assert (made / "sites" / "north" / "node.key").read_bytes() == first
    monkeypatch.setattr(federation, "_alive", lambda folder: 1)
    (own,) = federation.add(made, ["east"])
    assert told == [("supernode", "register", str(own / "node.key.pub"), "hansa", "--name", "east")]
    with monkeypatch.context() as refusing:
        refusing.setattr(federation, "flwr", refused)
        with pytest.raises(HansaError, match="no way"):
            federation.add(made, ["harbour"])
    assert federation.read(made).sites == ("north", "west", "east") and not (made / "sites" / "harbour").exists()
    for sites, wrong in ((["west"], "Two sites are called 'west'"), (["a/b"], "has '/' in it"), ([], "needs sites")):
        with pytest.raises(HansaError, match=wrong):
            federation.add(made, sites)
    assert sorted(one.name for one in (made / "sites").iterdir()) == ["east", "north", "west"]


def test_a_site_may_make_its_nodes_key_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server then has the public half alone, and nothing secret is sent to anybody."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    node_key(tmp_path)
    public = tmp_path / "north.pub"
    public.write_bytes((tmp_path / "node.key.pub").read_bytes().rstrip() + b" it@north.example.org\n")
    init_federation(tmp_path / "fed", [f"north={public}", "south"], "fl.example.org", 9443)
    own = tmp_path / "fed" / "sites" / "north"
    assert sorted(one.name for one in own.iterdir()) == ["ca.crt", "node.key.pub", "site.toml"]
    assert (own / "node.key.pub").read_bytes() == (tmp_path / "node.key.pub").read_bytes()
    assert (tmp_path / "fed" / "sites" / "south" / "node.key").exists()
    add_sites(tmp_path / "fed", [f"west={public}"])
    told = capsys.readouterr().out
    assert told.count("it adds its node.key, fills in") == 2 and federation.read(tmp_path / "fed").sites[-1] == "west"
    other = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "other.pub").write_bytes(other)
    for name, wrong in (
        ("node.key", "is no public key of a node: at the site 'ssh-keygen -t ecdsa -b 384"),  # its secret half
        ("other.pub", "is of a kind that Flower does not use"),
        ("none.pub", "cannot be read"),
    ):
        with pytest.raises(HansaError, match=wrong):
            init_federation(tmp_path / "fed2", [f"a={tmp_path / name}"], "127.0.0.1", 1)
        with pytest.raises(HansaError, match=wrong):
            add_sites(tmp_path / "fed", [f"east={tmp_path / name}"])
    with pytest.raises(HansaError, match="A site's name is empty"):
        add_sites(tmp_path / "fed", [f"={public}"])
    assert not (tmp_path / "fed2").exists() and not (tmp_path / "fed" / "sites" / "east").exists()


def test_the_certificate_is_for_the_servers_address(tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    federation.init(tmp_path / "fed", ["a"], "10.1.2.3", 9443)
    server, ca = (
        x509.load_pem_x509_certificate((tmp_path / "fed" / "server" / name).read_bytes())
        for name in ("server.crt", "ca.crt")
    )
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(one) for one in names.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "10.1.2.3"}
    server.verify_directly_issued_by(ca)
