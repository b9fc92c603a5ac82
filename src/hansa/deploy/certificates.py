"""Certificates of a federation: an authority of its own, the server's certificate, and keys of the sites' nodes."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.errors import HansaError, require
from hansa.io.files import write_whole

DAYS = 825  # that certificates are good for, the most that some systems accept


@dataclass(frozen=True)
class Authority:
    """The key and the certificate that a federation's other certificates are signed with."""

    key: Any
    certificate: Any


def _tools() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise HansaError("Certificates need the package 'cryptography': pip install 'hansa[flower]'.") from error
    return x509


def authority(folder: Path) -> Authority:
    """Make an authority, and write its certificate; its key is kept beside it, for sites that join later."""
    x509, key = _tools(), _key()
    name = _name("Hansa federation")
    constraint = x509.BasicConstraints(ca=True, path_length=0)
    may = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    may |= {"digital_signature": False, "key_cert_sign": True, "crl_sign": True}
    usage = x509.KeyUsage(**may, encipher_only=False, decipher_only=False)
    made = _certificate(name, name, key, key).add_extension(constraint, critical=True)
    certificate = _signed(made.add_extension(usage, critical=True), key)
    _write(folder / "ca.crt", _pem(certificate))
    _write_key(folder / "ca.key", key)
    return Authority(key, certificate)


def server(folder: Path, by: Authority, host: str) -> None:
    """Make the server's certificate, for its address and for this machine."""
    x509, key = _tools(), _key()
    names = {x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")), _address(host)}
    made = _certificate(_name(host), by.certificate.subject, key, by.key)
    certificate = _signed(made.add_extension(x509.SubjectAlternativeName(names), critical=False), by.key)
    _write(folder / "server.crt", _pem(certificate))
    _write_key(folder / "server.key", key)


def node_key(folder: Path) -> None:
    """Make the pair of keys by which the server knows a site's node."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = _key()
    write_secret(folder / "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    _write(folder / "node.key.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def public_key(path: Path) -> bytes:
    """Return the public half of the keys that a site made for its node, as OpenSSH writes it; refuse anything else."""
    _tools()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    does = "at the site 'ssh-keygen -t ecdsa -b 384 -f node.key' makes one, node.key.pub"
    try:
        found = load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise HansaError(f"The public key '{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise HansaError(f"'{path}' is no public key of a node: {does}.") from error
    require(
        isinstance(found, EllipticCurvePublicKey),
        f"The public key '{path}' is of a kind that Flower does not use: {does}.",
    )
    return found.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> Any:
    x509 = _tools()
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _address(host: str) -> Any:
    x509 = _tools()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: Any, issuer: Any, key: Any, signed_by: Any) -> Any:
    x509, now = _tools(), datetime.datetime.now(datetime.UTC)
    begins, ends = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=DAYS)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by.public_key())
    return made.add_extension(known_by, critical=False)  # without which Python 3.13 and later refuse a certificate


def _signed(made: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return made.sign(key, hashes.SHA384())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = certificate.public_bytes(Encoding.PEM)
    return pem


def _write_key(path: Path, key: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def write_secret(path: Path, content: bytes) -> None:
    """Write what this account alone may read."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def _write(path: Path, content: bytes) -> None:
    write_whole(path, content)
