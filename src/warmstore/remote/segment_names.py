"""Names of the objects of a segment log: the kind, the hash of the bytes, and the signature of both where it is signed.

So a name can be checked before its object is fetched, and the object against its name afterwards.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Protocol, final

from warmstore.errors import NotTrusted
from warmstore.remote.signing import Keyring

SEGMENT = "s"
_NAME = re.compile(
    r"(?P<kind>s|h(?P<depth>[0-9]{8}))-(?P<hash>[0-9a-f]{64})"
    r"(?:\.(?P<scheme>h|e)\.(?P<key>[0-9a-f]{16})\.(?P<signature>[0-9a-f]{64}|[0-9a-f]{128}))?"
)
_SCHEMES = {"h": "hmac", "e": "ed25519.pub"}
_CODES = {scheme: code for code, scheme in _SCHEMES.items()}


class LogName(NamedTuple):
    """A parsed name.

    text: the name itself. kind: "s" for a segment, "h" and its depth for a head. signature: scheme, key and signature,
    or None.
    """

    text: str
    kind: str
    hash: str
    signature: tuple[str, str, str] | None

    @classmethod
    def parse(cls, text: str) -> LogName | None:
        """The parts of a name; None for another text."""
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        scheme = match["scheme"]
        signature = None if scheme is None else (_SCHEMES[scheme], match["key"], match["signature"])
        return cls(text, match["kind"], match["hash"], signature)

    @property
    def depth(self) -> int:
        """The number of heads before a head, at least; -1 for a segment."""
        return -1 if self.kind == SEGMENT else int(self.kind[1:])

    def matches(self, data: bytes) -> bool:
        """Whether the bytes are those that the name was made of."""
        return hash_of(data) == self.hash


def head_kind(depth: int) -> str:
    """The kind of a head."""
    return f"h{depth:08d}"


def hash_of(data: bytes | memoryview) -> str:
    """The SHA-256 of some bytes, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class Vouching(Protocol):
    """Makes and accepts names."""

    can_write: bool
    """Whether this process can make names that others accept."""

    def name(self, kind: str, data: bytes) -> LogName:
        """The name of an object."""

    def objection(self, name: LogName) -> str | None:
        """Why an object of this name is not fetched, "" if it is passed over silently; None if it is accepted."""


@final
class Checksums:
    """Names without signatures. Signed names are accepted too, by their hashes.

    Args:
        signed_only: pass over names without a signature. Signatures are not checked.
    """

    can_write = True

    def __init__(self, *, signed_only: bool = False) -> None:
        self._signed_only = signed_only

    def name(self, kind: str, data: bytes) -> LogName:
        return LogName(f"{kind}-{hash_of(data)}", kind, hash_of(data), None)

    def objection(self, name: LogName) -> str | None:
        return "" if self._signed_only and name.signature is None else None


@final
class Signatures:
    """Names with signatures by one of some keys. Others are not accepted.

    Args:
        purpose: of the objects; a signature is not valid for another purpose.

    Raises:
        NotTrusted: there is no key.
    """

    def __init__(self, keyring: Keyring, purpose: str) -> None:
        if not keyring:
            raise NotTrusted(
                None,
                "a signed remote needs a key: `warmstore signing-keys generate`, then set WARMSTORE_SIGNING_KEY_FILE",
                purpose,
            )
        self._keyring = keyring
        self._purpose = purpose
        self.can_write = any(key.is_secret for key in keyring.keys)

    def name(self, kind: str, data: bytes) -> LogName:
        """As `Vouching.name`. Raises NotTrusted if no key can sign."""
        digest = hash_of(data)
        signed = self._keyring.sign(self._purpose, f"{kind}-{digest}".encode())
        if signed is None:
            raise NotTrusted(None, "none of the keys can sign; a public key can only check", self._purpose)
        signature = signed["kind"], signed["key"], signed["signature"]
        text = f"{kind}-{digest}.{_CODES[signed['kind']]}.{signed['key']}.{signed['signature']}"
        return LogName(text, kind, digest, signature)

    def objection(self, name: LogName) -> str | None:
        signature = None
        if name.signature is not None:
            signature = dict(zip(("kind", "key", "signature"), name.signature, strict=True))
        try:
            self._keyring.check(self._purpose, f"{name.kind}-{name.hash}".encode(), signature, name.text[:20])
        except NotTrusted as error:
            return error.strerror or str(error)
        return None
