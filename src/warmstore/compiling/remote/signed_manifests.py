"""Signed manifests in a remote: each lists artifacts that one host has published for one namespace.

Environments of different namespaces share no artifacts. The manifests of a namespace are the segments of one log
(`warmstore.remote.segment_log`): they are signed one by one, never changed, and folded by any host that can sign.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import zstandard

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.store import artifact_json as manifests
from warmstore.errors import BadArtifact, NewerFormat
from warmstore.remote.mirror import Mirror
from warmstore.remote.objects import Objects
from warmstore.remote.segment_bundles import Segment
from warmstore.remote.segment_log import LogState, SegmentLog
from warmstore.remote.segment_names import Signatures
from warmstore.remote.signing import Keyring

FORMAT = 2
"""The format of manifests. Those of format 1 were numbered; they lie below compiled/1 and are not read."""
ROOT = "compiled/2"
BLOBS = f"{ROOT}/blobs"
MANIFESTS = f"{ROOT}/manifests"
PACKS = f"{ROOT}/packs"

_PURPOSE = "remote manifest"
_MOST_UNPACKED = 512 << 20


@dataclass(frozen=True)
class SignedManifest:
    """What a writer has published for a namespace at once. `digest`: the hash of its segment; "" before that."""

    namespace: str
    artifacts: Sequence[Artifact] = ()
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    digest: str = ""


@dataclass
class Loaded:
    """The manifests of a namespace.

    Attributes:
        manifests: All that count.
        state: The state of the log that they were read from.
        refused: Why others are invalid or not trusted.
    """

    manifests: list[SignedManifest] = field(default_factory=list)
    state: LogState = field(default_factory=LogState)
    refused: list[str] = field(default_factory=list)


def log_of(namespace: str, keyring: Keyring, mirror: Path | None) -> SegmentLog:
    """The log of a namespace. `mirror`: the folder for what was fetched of it. Raises NotTrusted without a key."""
    vouching = Signatures(keyring, f"{_PURPOSE} {namespace}")
    return SegmentLog(f"{MANIFESTS}/{namespace}", vouching, Mirror(mirror), packs=PACKS)


def namespace_of(environment: Environment) -> str:
    """The namespace of an environment: system, machine, Python and torch."""
    python = ".".join(environment.python.split(".")[:2])
    name = f"{environment.system}-{environment.machine}-{python}-torch-{environment.torch or 'none'}"
    return re.sub(r"[^\w.-]", "_", name).lower()


def blob_name(digest: str) -> str:
    """The name of the object of a blob."""
    return f"{BLOBS}/{digest[:2]}/{digest}"


def payload_of(manifest: SignedManifest) -> bytes:
    """The payload of a manifest's segment."""
    body = manifests.describe(manifest.artifacts, manifest.jobs) | {
        "format": FORMAT,
        "namespace": manifest.namespace,
        "once": secrets.token_hex(8),  # the name of a replaced segment does not come back
    }
    return zstandard.ZstdCompressor(level=6).compress(json.dumps(body, sort_keys=True).encode())


def manifest_of(segment: Segment, namespace: str) -> SignedManifest:
    """The manifest in a segment whose signature was checked.

    Raises BadArtifact for signed data that is no manifest, and NewerFormat.
    """
    name = f"the manifest {segment.name.hash[:16]}"
    try:
        body = json.loads(zstandard.ZstdDecompressor().stream_reader(segment.payload).read(_MOST_UNPACKED))
        version = body["format"]
    except (zstandard.ZstdError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadArtifact(f"{name} is no manifest ({error!r})") from error
    if version != FORMAT:
        raise NewerFormat.of(name, repr(version), FORMAT)
    artifacts, jobs = manifests.read(body)
    return SignedManifest(namespace, artifacts, jobs, segment.name.hash)


async def load(
    objects: Objects,
    log: SegmentLog,
    namespace: str,
    known_replaced: Collection[str] = (),
    flowed: Callable[[int], None] | None = None,
) -> Loaded:
    """The manifests of a namespace: one listing, and what is not here.

    `known_replaced`: hashes of manifests that were replaced, as this host has seen.

    Raises:
        RemoteUnavailable, RemoteRefused: A request failed.
    """
    state = await log.read(objects, flowed=flowed)
    found = Loaded(state=state, refused=list(state.problems))
    for segment in state.segments:
        if segment.name.hash in known_replaced:
            found.refused.append(
                f"the manifest {segment.name.hash[:16]} was replaced before: somebody restored an old state"
            )
            continue
        try:
            found.manifests.append(manifest_of(segment, namespace))
        except (BadArtifact, NewerFormat) as error:
            found.refused.append(str(error))
    return found


async def publish(objects: Objects, log: SegmentLog, manifest: SignedManifest, state: LogState) -> SignedManifest:
    """Add a manifest to a log of which `state` was just read. Raises NotTrusted if no key can sign."""
    segment = await log.append(objects, payload_of(manifest), state)
    return replace(manifest, digest=segment.name.hash)
