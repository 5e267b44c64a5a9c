"""Signed manifests in a remote: what a host has put there. Each host writes its own, under a number that only grows.

A manifest is everything one host published for one namespace, that is, for environments that may share at all. It is
never changed: the next one has the next number, and is created only where nobody else created it. So two writers never
overwrite each other, and whoever has seen a number takes no lower one from that host any more.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard
from blake3 import blake3

from warmstore.compiling.environment import Environment
from warmstore.compiling.store import artifact_json as manifests
from warmstore.compiling.store.artifact import Artifact
from warmstore.errors import BadArtifact, NewerFormat, NotTrusted, RemoteUnavailable, WarmstoreError
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring

FORMAT = 1
ROOT = "compiled/1"
BLOBS = f"{ROOT}/blobs"
MANIFESTS = f"{ROOT}/manifests"

_PURPOSE = "remote manifest"
_MOST = 64 << 20  # bytes of a manifest, packed
_MOST_UNPACKED = 512 << 20
_MOST_HEADER = 4096
_TRIES = 3  # manifests of one host that are looked at, newest first, until one is right
_NAME = re.compile(rf"{MANIFESTS}/([\w.+-]+)/([0-9a-f]{{32}})\.(\d{{12}})")


@dataclass(frozen=True)
class SignedManifest:
    """What a writer published for a namespace. `digest` is of its object, once it has one."""

    namespace: str
    writer: str
    sequence: int
    artifacts: Sequence[Artifact] = ()
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    digest: str = ""

    @property
    def name(self) -> str:
        """The name of its object."""
        return f"{MANIFESTS}/{self.namespace}/{self.writer}.{self.sequence:012}"


@dataclass
class Loaded:
    """What was found in a remote: the newest right manifest of each writer; all names; what was wrong."""

    manifests: list[SignedManifest] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def namespace_of(environment: Environment) -> str:
    """What environments must share for anything of one to be used in the other, readable and fit for a name."""
    said = f"{environment.system}-{environment.machine}-{'.'.join(environment.python.split('.')[:2])}"
    said += f"-torch-{environment.torch or 'none'}"
    return re.sub(r"[^\w.-]", "_", said).lower()


def blob_name(digest: str) -> str:
    """The name of the object that has these bytes."""
    return f"{BLOBS}/{digest[:2]}/{digest}"


def parse_name(name: str) -> tuple[str, str, int] | None:
    """Namespace, writer and sequence of a manifest's object; None for what is no such name."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2], int(found[3])) if found else None


def seal(manifest: SignedManifest, keyring: Keyring) -> bytes:
    """The bytes of a manifest's object: a line with the signature, and the packed manifest that it signs.

    Raises:
        NotTrusted: no key can sign.
    """
    body = manifests.describe(manifest.artifacts, manifest.jobs) | {
        "format": FORMAT,
        "namespace": manifest.namespace,
        "writer": manifest.writer,
        "sequence": manifest.sequence,
    }
    packed = zstandard.ZstdCompressor(level=6).compress(json.dumps(body, sort_keys=True).encode())
    signature = keyring.sign(_PURPOSE, packed)
    if signature is None:
        raise NotTrusted(None, "none of the keys can sign; a public key only checks", manifest.name)
    return json.dumps(signature).encode() + b"\n" + packed


def unseal(data: bytes, name: str, keyring: Keyring) -> SignedManifest:
    """The manifest in an object of that name. Nothing but the signature is looked at before it was checked.

    Raises:
        NotTrusted: the signature is missing, wrong or of another key, or it is another manifest's object.
        BadArtifact: it is signed, and still no manifest.
        NewerFormat: a newer warmstore wrote it.
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
        found = (body["namespace"], body["writer"], body["sequence"])
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadArtifact(f"{name} is no manifest ({error!r})") from error
    if version != FORMAT:
        raise NewerFormat(f"{name} has format {version!r}, and this warmstore knows {FORMAT}; upgrade warmstore")
    if found != parse_name(name):
        raise NotTrusted(
            None, "it is the manifest {} {} {}, put in another's place: it was replayed".format(*found), name
        )
    artifacts, jobs = manifests.read(body)
    return SignedManifest(*found, artifacts, jobs, blake3(data).hexdigest())


async def load(
    objects: Objects,
    keyring: Keyring,
    namespace: str | None,
    objection: Callable[[SignedManifest], str | None],
    flowed: Callable[[int], None] | None = None,
) -> Loaded:
    """The newest right manifest of each writer, of one namespace or of all: one listing, then all of them at once.

    `objection` says why a manifest is not taken although its signature is right.

    Raises:
        RemoteUnavailable, RemoteRefused: the remote cannot be listed.
    """
    found = Loaded()
    prefix = MANIFESTS if namespace is None else f"{MANIFESTS}/{namespace}"
    writers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in await objects.entries_async(prefix, flowed=flowed):
        if (parsed := parse_name(entry.name)) is not None and namespace in (None, parsed[0]):
            writers[parsed[:2]].append(entry.name)
            found.names.append(entry.name)

    async def newest(names: list[str]) -> None:
        for name in sorted(names, reverse=True)[:_TRIES]:
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

    await objects.each(newest, writers.values())
    return found


async def publish(objects: Objects, keyring: Keyring, manifest: SignedManifest) -> SignedManifest | None:
    """Create the object of a manifest. None where somebody else created one of that name.

    Raises:
        RemoteUnavailable, RemoteRefused: it may be there now, or not.
    """
    data = seal(manifest, keyring)
    sealed = SignedManifest(**{**vars(manifest), "digest": blake3(data).hexdigest()})
    if await objects.put_async(manifest.name, data, create=True):
        return sealed
    # A request that was sent twice, for its answer was lost, finds the object of the first one.
    there = await objects.get_async(manifest.name, most=_MOST)
    if there is None:
        raise RemoteUnavailable(f"{objects.location.url}: {manifest.name} was there, and is gone")
    return sealed if there == data else None
