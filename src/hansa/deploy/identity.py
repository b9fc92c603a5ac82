"""A site's own key for secure sums: made at the site, whose public half the sites tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hansa.channels.secure_sum import SecureSum
from hansa.deploy.certificates import write_secret
from hansa.engines.site_members import SumKeys
from hansa.errors import HansaError, require

KEY = 64  # hexadecimal digits of a public key


def own_key(path: Path) -> str:
    """Return the public half of a site's key, which is made where there is none yet."""
    SecureSum.require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from hansa.channels.sealing import public

    if not path.exists():
        made = Ed25519PrivateKey.generate()
        write_secret(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public(_read(path)).hex()


def sum_keys(path: Path, members: Mapping[str, str], clients: Iterable[str], fewest: int, only: bool) -> SumKeys | None:
    """Return a site's keys for secure sums; None where its file names no members, so that it takes part in none."""
    if not members:
        require(not only, "A site of secure sums alone needs the keys of all clients under [members] in its file.")
        return None
    own = own_key(path)
    for client, key in members.items():
        good = len(key) == KEY and all(letter in "0123456789abcdef" for letter in key)
        require(good, f"The key of '{client}' under [members] must be {KEY} hexadecimal digits. Got '{key[:80]}'.")
    for client in clients:
        says = f"Under [members] the site file must have this site's own key for its client '{client}'"
        require(members.get(client) == own, f"{says}: it is {own}, as 'hansa site key' tells.")
    return SumKeys(_read(path), {client: bytes.fromhex(key) for client, key in members.items()}, fewest, only)


def _read(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise HansaError(f"The site's key '{path}' cannot be read: {error}.") from error
    require(isinstance(found, Ed25519PrivateKey), f"The site's key '{path}' is of another kind: make one anew.")
    return found
