"""Signatures on what was made elsewhere and is executed here: HMAC-SHA256 with a shared secret, or Ed25519.

A key is one line: "hmac:HEX" is a secret that everybody who signs or checks must have, "ed25519:HEX" a private key,
"ed25519.pub:HEX" the public one that belongs to it, which is enough to check. What is signed says what it is for, so
that a signature on one thing is none on another.
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
from pathlib import Path
from typing import Any

from warmstore.errors import NotInstalled, NotTrusted

KEY = "WARMSTORE_SIGNING_KEY"
KEY_FILE = "WARMSTORE_SIGNING_KEY_FILE"
"""Variables with keys, one a line, or with the path of a file that has them. The first that can sign is signed with."""

_LEAST = 16  # bytes in a shared secret


@dataclass(frozen=True)
class SigningKey:
    """One key. `material` is never shown."""

    kind: str
    material: bytes = field(repr=False)

    @classmethod
    def parse(cls, line: str) -> SigningKey:
        """The key that a line says.

        Raises:
            ValueError: it says none.
        """
        kind, _, text = line.strip().partition(":")
        try:
            material = bytes.fromhex(text)
        except ValueError:
            material = b""
        if kind not in ("hmac", "ed25519", "ed25519.pub"):
            raise ValueError('a key begins with "hmac:", "ed25519:" or "ed25519.pub:", and this one does not')
        if len(material) < _LEAST if kind == "hmac" else len(material) != 32:
            wanted = f"at least {_LEAST}" if kind == "hmac" else "32"
            raise ValueError(f"a key of kind {kind} has {wanted} bytes, written in hexadecimal; this one has not")
        return cls(kind, material)

    @classmethod
    def new(cls, kind: str = "hmac") -> SigningKey:
        """A new secret: of kind "hmac", or a private key of kind "ed25519".

        Raises:
            ValueError: another kind.
        """
        if kind not in ("hmac", "ed25519"):
            raise ValueError(f"{kind!r} is no kind of key that can be made; it is hmac or ed25519")
        return cls.parse(f"{kind}:{secrets.token_hex(32)}")

    @property
    def line(self) -> str:
        """What `parse` reads. A secret, but for public keys."""
        return f"{self.kind}:{self.material.hex()}"

    @property
    def is_secret(self) -> bool:
        return self.kind != "ed25519.pub"

    @property
    def public(self) -> SigningKey:
        """What others need to check signatures: of a private key the public one, of a shared secret itself."""
        if self.kind != "ed25519":
            return self
        ed25519 = _ed25519()
        return SigningKey(
            "ed25519.pub", ed25519.Ed25519PrivateKey.from_private_bytes(self.material).public_key().public_bytes_raw()
        )

    @property
    def id(self) -> str:
        """16 digits that tell keys apart and give nothing away."""
        public = self.public
        return hashlib.sha256(b"warmstore key\0" + public.kind.encode() + public.material).hexdigest()[:16]

    def sign(self, message: bytes) -> bytes:
        if self.kind == "hmac":
            return hmac.digest(self.material, message, "sha256")
        signature: bytes = _ed25519().Ed25519PrivateKey.from_private_bytes(self.material).sign(message)
        return signature

    def checks(self, message: bytes, signature: bytes) -> bool:
        """Whether this key, or the private one of it, made the signature."""
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
    """The keys of this user. Without any, nothing is signed and nothing can be checked; it is false then."""

    keys: tuple[SigningKey, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Keyring:
        """The keys that WARMSTORE_SIGNING_KEY holds, and those of the file that WARMSTORE_SIGNING_KEY_FILE names.

        Raises:
            NotTrusted: a line that is no key, or a file that others could have written, or read a secret from.
        """
        variables = os.environ if environment is None else environment
        keys = list(_parsed(variables.get(KEY, "").splitlines(), f"the variable {KEY}"))
        if variables.get(KEY_FILE):
            keys += cls.from_file(variables[KEY_FILE]).keys
        return cls(tuple(keys))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keyring:
        """The keys of a file. It must belong to this user or to root, and must not be open to others.

        Raises:
            NotTrusted: it is, or it cannot be read, or has no keys.
        """
        path = Path(path).expanduser()
        try:
            with open(path) as file:
                state = os.fstat(file.fileno())
                text = file.read(1 << 16)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise NotTrusted(errno.EACCES, f"the keys to sign with cannot be read: {why}", str(path)) from error
        keys = tuple(_parsed(text.splitlines(), str(path)))
        mode = stat.S_IMODE(state.st_mode)
        if state.st_uid not in (0, os.geteuid()) or mode & 0o022:
            raise NotTrusted(
                errno.EPERM, "other users could have put keys into this file; make it yours: chmod 600", str(path)
            )
        if mode & 0o077 and any(key.is_secret for key in keys):
            raise NotTrusted(errno.EPERM, "other users can read the secret keys in this file; chmod 600", str(path))
        if not keys:
            raise NotTrusted(errno.EINVAL, "there is no key in this file", str(path))
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def sign(self, purpose: str, message: bytes) -> dict[str, str] | None:
        """The signature of the first key that can make one; None where there is none."""
        for key in self.keys:
            if key.is_secret:
                return {"kind": key.public.kind, "key": key.id, "signature": key.sign(_said(purpose, message)).hex()}
        return None

    def check(self, purpose: str, message: bytes, signature: Mapping[str, str] | None, what: str) -> str:
        """Have one of these keys confirm a signature; returns which.

        Raises:
            NotTrusted: there is no signature, it is of another key, or of something else.
        """
        if not signature:
            raise NotTrusted(
                errno.EPERM, "it is not signed, and a key is configured: only what is signed is taken", what
            )
        for key in self.keys:
            if key.id == signature.get("key") and key.public.kind == signature.get("kind"):
                try:
                    made = bytes.fromhex(str(signature.get("signature")))
                except ValueError:
                    made = b""
                if key.checks(_said(purpose, message), made):
                    return key.id
                raise NotTrusted(errno.EPERM, f"its signature is not that of the key {key.id}: it was changed", what)
        raise NotTrusted(
            errno.EPERM, f"it is signed with the key {signature.get('key')}, which is not among yours", what
        )


def _said(purpose: str, message: bytes) -> bytes:
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
        raise NotInstalled('keys of kind ed25519 need `pip install "warmstore[sign]"`') from error
    return ed25519
