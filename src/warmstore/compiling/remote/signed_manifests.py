"""Signed manifests in a remote: each lists all artifacts that one host has published for one namespace.

Environments of different namespaces share no artifacts. `warmstore.remote.manifests` numbers the manifests of a host
and namespace. A reader that has seen a number refuses lower numbers of the same series.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import zstandard
from blake3 import blake3

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.store import artifact_json as manifests
from warmstore.errors import BadArtifact, NewerFormat, NotTrusted, WarmstoreError
from warmstore.remote.manifests import Manifests, Numbered, create
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring

FORMAT = 1
ROOT = "compiled/1"
BLOBS = f"{ROOT}/blobs"
MANIFESTS = Manifests(f"{ROOT}/manifests", r"(?P<series>[\w.+-]+/[0-9a-f]{32})\.(?P<number>\d{12})")
"""A series for each namespace and writer."""

_PURPOSE = "remote manifest"
_MOST = 64 << 20  # bytes of a manifest, packed
_MOST_UNPACKED = 512 << 20
_MOST_HEADER = 4096
_TRIES = 3  # manifests of a series that are tried, newest first, until one is valid


@dataclass(frozen=True)
class SignedManifest:
    """What a writer has published for a namespace. `digest`: the BLAKE3 of its object; "" before it is published."""

    namespace: str
    writer: str
    sequence: int
    artifacts: Sequence[Artifact] = ()
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    digest: str = ""

    @property
    def series(self) -> str:
        return f"{self.namespace}/{self.writer}"

    @property
    def name(self) -> str:
        return f"{MANIFESTS.folder}/{self.series}.{self.sequence:012}"


@dataclass
class Loaded:
    """The manifests of a remote.

    Attributes:
        manifests: The newest valid manifest of each series.
        listed: The names of all manifests, by series.
        refused: Why manifests are invalid or not trusted.
        failed: Why manifests could not be read.
    """

    manifests: list[SignedManifest] = field(default_factory=list)
    listed: dict[str, list[Numbered]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def namespace_of(environment: Environment) -> str:
    """The namespace of an environment: system, machine, Python and torch."""
    python = ".".join(environment.python.split(".")[:2])
    name = f"{environment.system}-{environment.machine}-{python}-torch-{environment.torch or 'none'}"
    return re.sub(r"[^\w.-]", "_", name).lower()


def blob_name(digest: str) -> str:
    """The name of the object of a blob."""
    return f"{BLOBS}/{digest[:2]}/{digest}"


def seal(manifest: SignedManifest, keyring: Keyring) -> bytes:
    """The bytes of a manifest's object: a line with the signature, then the compressed manifest. Raises NotTrusted if
    no key can sign."""
    body = manifests.describe(manifest.artifacts, manifest.jobs) | {
        "format": FORMAT,
        "namespace": manifest.namespace,
        "writer": manifest.writer,
        "sequence": manifest.sequence,
    }
    packed = zstandard.ZstdCompressor(level=6).compress(json.dumps(body, sort_keys=True).encode())
    signature = keyring.sign(_PURPOSE, packed)
    if signature is None:
        raise NotTrusted(None, "none of the keys can sign; a public key can only check", manifest.name)
    return json.dumps(signature).encode() + b"\n" + packed


def unseal(data: bytes, name: str, keyring: Keyring) -> SignedManifest:
    """The manifest in an object of that name. The signature is checked before anything else is read.

    Raises NotTrusted for a wrong signature or name, BadArtifact for signed data that is no manifest, and NewerFormat.
    """
    header, _, packed = data.partition(b"\n")
    try:
        signature: Any = json.loads(header) if len(header) <= _MOST_HEADER else None
    except (ValueError, RecursionError):
        signature = None
    keyring.check(_PURPOSE, packed, signature if isinstance(signature, dict) else None, name)
    try:
        unpacked = zstandard.ZstdDecompressor().stream_reader(packed).read(_MOST_UNPACKED)
        body = json.loads(unpacked)
        version = body["format"]
        namespace, writer, sequence = body["namespace"], body["writer"], body["sequence"]
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadArtifact(f"{name} is no manifest ({error!r})") from error
    if version != FORMAT:
        raise NewerFormat(f"{name} has format {version!r}, and this warmstore knows {FORMAT}; upgrade warmstore")
    if MANIFESTS.parse(name) != (f"{namespace}/{writer}", sequence, name):
        raise NotTrusted(None, f"its content is the manifest {namespace} {writer} {sequence}", name)
    artifacts, jobs = manifests.read(body)
    return SignedManifest(namespace, writer, sequence, artifacts, jobs, blake3(data).hexdigest())


async def load(
    objects: Objects,
    keyring: Keyring,
    namespace: str | None,
    objection: Callable[[SignedManifest], str | None],
    flowed: Callable[[int], None] | None = None,
) -> Loaded:
    """The newest valid manifest of each series, of one namespace or of all: one listing, then parallel requests.

    `objection` returns why a correctly signed manifest is refused, or None.

    Raises:
        RemoteUnavailable, RemoteRefused: The remote cannot be listed.
    """
    found = Loaded(listed=await MANIFESTS.by_series(objects, namespace or "", flowed=flowed))

    async def newest(manifests: list[Numbered]) -> None:
        for name in [manifest.name for manifest in manifests[:_TRIES]]:
            try:
                data = await objects.get_async(name, most=_MOST, flowed=flowed)
                if data is None:
                    continue  # its writer has just replaced it
                manifest = unseal(data, name, keyring)
                why = objection(manifest)
            except (NotTrusted, BadArtifact, NewerFormat) as error:
                why = str(error)
            except WarmstoreError as error:
                found.failed.append(str(error))
                return
            if why is None:
                found.manifests.append(manifest)
                return
            found.refused.append(why)

    await objects.each(newest, found.listed.values())
    return found


async def publish(objects: Objects, keyring: Keyring, manifest: SignedManifest) -> SignedManifest | None:
    """Create the object of a manifest. Returns None if the object exists. After an error the object may exist, or
    not."""
    data = seal(manifest, keyring)
    published = await create(objects, manifest.name, data)
    return replace(manifest, digest=blake3(data).hexdigest()) if published else None
