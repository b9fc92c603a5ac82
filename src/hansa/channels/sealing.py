"""Keys, seals and streams: what secure sums ask of cryptography, which the library of that name does.

X25519 agrees on a secret of two, HKDF makes keys of it, ChaCha20-Poly1305 seals what a third party carries, ChaCha20
makes streams of numbers that look uniform to whoever does not have the key, and Ed25519 signs.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hansa.errors import HansaError

KEY, SIGNATURE, NONCE, TAG = 32, 64, 12, 16  # bytes


def public(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    """Return the public half of a key."""
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def private(key: X25519PrivateKey | Ed25519PrivateKey) -> bytes:
    """Return the private half of a key."""
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, none)


def derived(key: Ed25519PrivateKey, purpose: bytes) -> X25519PrivateKey:
    """Return a key of another kind that follows from one, for one purpose."""
    return X25519PrivateKey.from_private_bytes(HKDF(hashes.SHA256(), KEY, None, purpose).derive(private(key)))


def agreed(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """Return the key that the owners of two pairs of keys agree on for one purpose."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point that gives the same secret whatever the other key is
        raise HansaError("A public key of another client is none.") from error
    return HKDF(hashes.SHA256(), KEY, None, purpose).derive(secret)


def sealed(key: bytes, text: bytes, about: bytes) -> bytes:
    """Return a text that only the holder of a key can read; `about` goes beside it and cannot be exchanged either."""
    nonce = os.urandom(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, about)


def unsealed(key: bytes, message: bytes, about: bytes, sender: str) -> bytes:
    """Invert `sealed`."""
    try:
        return ChaCha20Poly1305(key).decrypt(message[:NONCE], message[NONCE:], about)
    except InvalidTag as error:
        raise HansaError(f"What '{sender}' sealed was changed on its way.") from error


def require_signed(key: bytes, signature: bytes, text: bytes, sender: str) -> None:
    """Refuse a text that the owner of a public key did not sign."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except InvalidSignature as error:
        raise HansaError(f"The keys of '{sender}' are not signed by the key that is registered for it.") from error


def stream(key: bytes, size: int) -> bytes:
    """Return so many bytes that look uniform to whoever does not have the key."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))
