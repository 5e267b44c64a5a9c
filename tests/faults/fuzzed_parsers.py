"""Every parser of bytes and of texts that others may have written, with real inputs to begin with.

A parser gets any bytes. It returns, or raises an error of its documented kind. Most formats have a checksum, which no
fuzzer finds by chance: those parsers get bytes that were sealed, as by an adversary, and so see all others.
"""

import asyncio
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import zstandard
from tests.compiling.environments import HERE
from tests.faults import real_inputs as real
from tests.faults.fuzzed_stores import IndexHeader, StoreLog
from tests.faults.real_inputs import segment

from warmstore.compiling.environment import Environment
from warmstore.compiling.misses import lookup_log
from warmstore.compiling.misses.key_descriptions import KeyDescription
from warmstore.compiling.packages.package import Package
from warmstore.compiling.remote import signed_manifests
from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.rules import choose
from warmstore.compiling.store import artifact_json
from warmstore.converting.brace_patterns import expand
from warmstore.errors import WarmstoreError
from warmstore.features.keyed.usage_counters import read_usage
from warmstore.pipeline.profile.profile import Profile
from warmstore.pipeline.tiers.tier_about import read_about
from warmstore.records.format.codecs import parse_codec
from warmstore.records.format.manifest import manifest_of
from warmstore.records.log.log_entries import ENTRY, SIZE, entries_of
from warmstore.records.log.number_lists import NumberLists
from warmstore.remote.location import Location
from warmstore.remote.manifests import Numbered
from warmstore.remote.segment_bundles import Bundle, segment_bytes
from warmstore.remote.segment_names import LogName
from warmstore.remote.signing import Keyring, SigningKey
from warmstore.replicate import parts, remote_copy, remote_diff, remote_snapshot
from warmstore.replicate.sidecar import Sidecar, name_of
from warmstore.storage import checked_json, history, registry
from warmstore.storage.files import PLAIN
from warmstore.storage.humanize import parse_duration, parse_size

SCRATCH = Path(tempfile.gettempdir()) / f"warmstore-fuzz-{os.getpid()}"


@dataclass(frozen=True)
class Parser:
    """One parser. given: real inputs, or what makes them. errors: of its documented kinds. share: of the inputs that
    others get, where one takes long."""

    parse: Callable[[bytes], Any]
    given: Sequence[bytes] | Callable[[], Sequence[bytes]]
    errors: tuple[type[Exception], ...] = field(default=(WarmstoreError,))
    share: float = 1.0

    @property
    def inputs(self) -> Sequence[bytes]:
        """Real inputs."""
        return self.given() if callable(self.given) else self.given

    def __call__(self, data: bytes) -> bool:
        """Parse some bytes. Returns whether they are valid."""
        try:
            self.parse(data)
        except self.errors:
            return False
        return True


def in_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A parser of files as one of bytes."""

    def parse(data: bytes) -> Any:
        path = SCRATCH / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return parse


def sealed(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A parser of JSON with a checksum, as one of JSON without."""

    def parse_sealed(data: bytes) -> Any:
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return parse(data)
        if not isinstance(content, dict):
            return parse(data)
        content.pop("checksum", None)
        return parse(checked_json.to_bytes(content))

    return parse_sealed


def text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """A parser of texts."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def log_entries(data: bytes) -> Any:
    """A log whose entries are sealed."""
    entries = np.frombuffer(data[: len(data) // SIZE * SIZE], ENTRY).copy()
    return entries_of(real.with_hashes(entries), real.SEED, "log")


def number_lists(data: bytes) -> Any:
    """Lists of numbers; the first bytes are the entries that refer to them."""
    entries = np.frombuffer(data[: 2 * SIZE].ljust(2 * SIZE, b"\0"), ENTRY)
    return NumberLists(data[2 * SIZE :], real.SEED, "numbers").read(entries)


def head(data: bytes) -> Any:
    """The head of a record store at a remote."""

    async def get(name: str, **_: Any) -> bytes:
        return data if name.startswith("heads") else b""

    objects = SimpleNamespace(get_async=get, location=SimpleNamespace(url="file:///remote"))
    return asyncio.run(remote_snapshot._snapshot_of(objects, Numbered("5" * 32, 1, "heads/1")))  # type: ignore[arg-type]


def part(data: bytes) -> Any:
    """What a host has pushed of a cache, with the description of its fields."""
    content, _, about = data.partition(b"\0")
    found = [(segment(segment_bytes(content)), parts._Content.parse(segment(segment_bytes(content)), signed=False))]
    try:
        described = json.loads(about)
    except (ValueError, RecursionError):
        return None
    return parts._part(found, {found[0][1].about: described if isinstance(described, dict) else None})


def artifacts(data: bytes) -> Any:
    """The artifacts of a bundle or a remote, which are then looked for."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found, _ = artifact_json.read(content)
    return choose(found, HERE)


def signed_manifest(data: bytes) -> Any:
    return signed_manifests.manifest_of(segment(segment_bytes(zstandard.compress(data))), "here")


def signature(data: bytes) -> Any:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return Keyring((real.KEY,)).check("p", b"m", content if isinstance(content, dict) else None, "it")


def sidecar(data: bytes) -> Any:
    found = Sidecar.parse(data, name_of(data), 1 << 20)
    return found.rows, list(found.pieces)


def memory(path: Path) -> Any:
    own = RemoteMemory(SCRATCH / "c", "u")
    own._path = path
    return own._read()


def chunks(path: Path) -> Any:
    return remote_copy.read_chunks(path.parent, PLAIN)


def notes(path: Path) -> Any:
    return remote_diff._read_notes(path.parent, PLAIN)


def registered(path: Path) -> Any:
    with os.scandir(path.parent) as files:
        return [registry._read(file) for file in files]


_log, _index = StoreLog(SCRATCH), IndexHeader(SCRATCH)
PARSERS: dict[str, Parser] = {
    "store.json": Parser(sealed(lambda data: manifest_of(data, "store.json")), [real.STORE]),
    "store.json, unsealed": Parser(lambda data: manifest_of(data, "store.json"), [real.STORE]),
    "log": Parser(log_entries, [real.LOG, real.LOG[:SIZE]]),
    "log, unsealed": Parser(lambda data: entries_of(data, real.SEED, "log"), [real.LOG, real.LOG[: 3 * SIZE + 5]]),
    "log of a store": Parser(_log, lambda: [_log.seed], share=0.01),
    "key index": Parser(_index, lambda: [_index.seed], share=0.05),
    "numbers": Parser(number_lists, [real.NUMBERS]),
    "profile": Parser(in_file("profile", Profile.load), [real.as_json({"format": 5, **asdict(real.PROFILE)})]),
    "cost.json": Parser(in_file("cost", read_usage), [real.COST]),
    "about.json": Parser(in_file("about.json", lambda path: read_about(path.parent)), [real.ABOUT]),
    "history": Parser(in_file(history.NAME, lambda path: list(history.read_history(path))), [real.HISTORY]),
    "registry": Parser(in_file("folders/one.json", registered), [real.FOLDER]),
    "lookups": Parser(in_file("c/runs/job.json", lambda path: list(lookup_log.read(path.parents[1]))), [real.LOOKUPS]),
    "memory of a remote": Parser(in_file("c/remote/f7cc.json", memory), [b'{"replaced": ["abababab"]}']),
    "key description": Parser(
        lambda data: KeyDescription.from_bytes(zlib.compress(data)), [zlib.decompress(real.DESCRIPTION)]
    ),
    "key description, packed": Parser(KeyDescription.from_bytes, [real.DESCRIPTION]),
    "package": Parser(Package.from_bytes, [real.PACKAGE]),
    "environment": Parser(text(Environment.from_json), [HERE.to_json().encode()]),
    "artifacts": Parser(artifacts, [real.ARTIFACTS]),
    "signed manifest": Parser(signed_manifest, [real.SIGNED]),
    "head": Parser(sealed(head), [real.HEAD]),
    "segment": Parser(segment, [real.SEGMENT]),
    "bundle of segments": Parser(lambda data: Bundle.parse(zstandard.compress(data), "head"), [real.BUNDLE]),
    "bundle of segments, packed": Parser(lambda data: Bundle.parse(data, "head"), [real.PACKED_BUNDLE]),
    "part": Parser(part, [real.PART]),
    "sidecar": Parser(sidecar, [real.SIDECAR]),
    "chunks of a copy": Parser(in_file(f"g/{remote_copy.CHUNKS}", chunks), [real.CHUNKS]),
    "notes of a remote": Parser(in_file(remote_diff.NOTE, notes), [real.NOTES]),
    "signature": Parser(signature, [real.SIGNATURE]),
    "signing key": Parser(text(SigningKey.parse), [b"hmac:" + b"5a" * 32, b"ed25519.pub:" + b"5a" * 32], (ValueError,)),
    "name of a segment": Parser(text(LogName.parse), [f"h00000001-{'ab' * 32}.h.{'cd' * 8}.{'ef' * 32}".encode()]),
    "name of a head": Parser(text(remote_snapshot.HEADS.parse), [f"heads/{'ab' * 16}/00000001.json".encode()]),
    "URL": Parser(
        text(Location.parse),
        [b"s3://bucket/prefix", b"https://u:p@[::1]:80/a%20b", b"file:///p", b"abfss://c@a/x", b"~/x"],
        (ValueError,),
    ),
    "size": Parser(text(parse_size), [b"512MB", b"4 GiB", b"0.5k", b"7"], (ValueError,)),
    "duration": Parser(text(parse_duration), [b"30d", b"1.5 h", b"5min"], (ValueError,)),
    "codec": Parser(text(parse_codec), [b"zstd:9", b"deflate", b"raw"]),
    "brace pattern": Parser(
        text(expand), [b"a-{000..013}.tar", b"{a,b{1,2}}", b"{a..f..2}\\{x}", b"{3..1}{x,}"], (ValueError,)
    ),
}
"""By name, as the campaign counts them."""
