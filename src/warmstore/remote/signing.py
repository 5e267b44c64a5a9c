"""Signatures of data that other machines made and that is executed here: HMAC-SHA256 or Ed25519.

A key is one line: "hmac:HEX" is a shared secret, which signs and checks, "ed25519:HEX" a private key, and
"ed25519.pub:HEX" its public key, which only checks. A signature includes its purpose, so that it is not valid for data
of another kind.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warmstore.errors import NotTrusted
from warmstore.extras import not_installed
from warmstore.storage.user_paths import user_path

KEY = "WARMSTORE_SIGNING_KEY"
KEY_FILE = "WARMSTORE_SIGNING_KEY_FILE"
"""Variables with keys, one a line, or with the path of a file of keys. The first key that can sign is used to sign."""

_LEAST = 16  # least bytes of a shared secret


@dataclass(frozen=True)
class SigningKey:
    """One key. `material` is never shown."""

    kind: str
    material: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> SigningKey:
        """The key in a line. Raises ValueError for other text."""
        kind, _, text = line.strip().partition(":")
        try:
            material = bytes.fromhex(text)
        except ValueError:
            material = b""
        if kind not in ("hmac", "ed25519", "ed25519.pub"):
            raise ValueError('a key begins with "hmac:", "ed25519:" or "ed25519.pub:"; this text does not')
        if len(material) < _LEAST if kind == "hmac" else len(material) != 32:
            wanted = f"at least {_LEAST}" if kind == "hmac" else "32"
            raise ValueError(f"a key of kind {kind} has {wanted} bytes in hexadecimal; this one has {len(material)}")
        return cls(kind, material)

    @classmethod
    def new(cls, kind: str = "hmac") -> SigningKey:
        """A new secret of kind "hmac", or private key of kind "ed25519". Raises ValueError for another kind."""
        if kind not in ("hmac", "ed25519"):
            raise ValueError(f"a key of kind {kind!r} cannot be made; choose hmac or ed25519")
        return cls.parse(f"{kind}:{secrets.token_hex(32)}")

    @property
    def line(self) -> str:
        """The form that `parse` reads. It is secret unless the key is public."""
        return f"{self.kind}:{self.material.hex()}"

    @property
    def is_secret(self) -> bool:
        return self.kind != "ed25519.pub"

    @property
    def public(self) -> SigningKey:
        """The key that checks signatures of this one: the public key of a private key, else the key itself."""
        if self.kind != "ed25519":
            return self
        ed25519 = _ed25519()
        return SigningKey(
            "ed25519.pub", ed25519.Ed25519PrivateKey.from_private_bytes(self.material).public_key().public_bytes_raw()
        )

    @property
    def id(self) -> str:
        """16 hexadecimal digits that identify the key and do not reveal it."""
        public = self.public
        return hashlib.sha256(b"warmstore key\0" + public.kind.encode() + public.material).hexdigest()[:16]

    def sign(self, message: bytes) -> bytes:
        if self.kind == "hmac":
            return hmac.digest(self.material, message, "sha256")
        signature: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(self.material).sign(message)
        return signature

    def checks(self, message: bytes, signature: bytes) -> bool:
        """Whether this key, or its private key, made the signature."""
        if self.kind == "hmac":
            return hmac.compare_digest(self.sign(message), signature)
        from cryptography.exceptions import InvalidSignature

        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self.public.material).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Keyring:
    """The keys of this user. An empty keyring is false."""

    keys: tuple[SigningKey, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Keyring:
        """The keys in WARMSTORE_SIGNING_KEY and in the file that WARMSTORE_SIGNING_KEY_FILE names. Raises NotTrusted
        for a line that is no key, and as `from_file`."""
        variables = os.environ if environment is None else environment
        keys = list(_parsed(variables.get(KEY, "").splitlines(), f"the variable {KEY}"))
        if variables.get(KEY_FILE):
            keys += cls.from_file(variables[KEY_FILE]).keys
        return cls(tuple(keys))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keyring:
        """The keys of a file.

        Raises:
            NotTrusted: The file cannot be read, has no keys, belongs to another user than this one and root, or others
                can write it or read a secret in it.
        """
        path = user_path(path)
        try:
            with open(path) as file:
                state = os.fstat(file.fileno())
                text = file.read(1 << 16)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise NotTrusted(errno.EACCES, f"the file with keys cannot be read: {why}", str(path)) from error
        keys = tuple(_parsed(text.splitlines(), str(path)))
        mode = stat.S_IMODE(state.st_mode)
        if state.st_uid not in (0, os.geteuid()) or mode & 0o022:
            raise NotTrusted(errno.EPERM, "other users could have written this file with keys; chmod 600", str(path))
        if mode & 0o077 and any(key.is_secret for key in keys):
            raise NotTrusted(errno.EPERM, "other users can read the secret keys in this file; chmod 600", str(path))
        if not keys:
            raise NotTrusted(errno.EINVAL, "this file has no key", str(path))
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def sign(self, purpose: str, message: bytes) -> dict[str, str] | None:
        """The signature by the first key that can sign; None if no key can."""
        key = next((key for key in self.keys if key.is_secret), None)
        if key is None:
            return None
        return {"kind": key.public.kind, "key": key.id, "signature": key.sign(_signed(purpose, message)).hex()}

    def check(self, purpose: str, message: bytes, signature: Mapping[str, str] | None, what: str) -> str:
        """Check a signature, and return the id of its key. Raises NotTrusted if it is missing, wrong, or of another
        key."""
        if not signature:
            raise NotTrusted(errno.EPERM, "it is not signed, which is required when a key is configured", what)
        for key in self.keys:
            if key.id == signature.get("key") and key.public.kind == signature.get("kind"):
                try:
                    value = bytes.fromhex(str(signature.get("signature")))
                except ValueError:
                    value = b""
                if key.checks(_signed(purpose, message), value):
                    return key.id
                raise NotTrusted(errno.EPERM, f"its signature by the key {key.id} is wrong: it was changed", what)
        raise NotTrusted(errno.EPERM, f"it is signed with the key {signature.get('key')}, which you do not have", what)


def _signed(purpose: str, message: bytes) -> bytes:
    return f"warmstore {purpose}\0".encode() + message


def _parsed(lines: Iterable[str], where: str) -> Iterable[SigningKey]:
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield SigningKey.parse(line)
            except ValueError as error:
                raise NotTrusted(errno.EINVAL, f"line {number} is no key: {error}", where) from None


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise not_installed("a key of kind ed25519", error, "cryptography") from error
    return ed25519
