"""Real inputs of parsers, small ones, for a fuzzer to begin with."""

import json
from typing import Any

import numpy as np
import xxhash
import zstandard
from tests.compiling.environments import HERE
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.compiling.artifact import Artifact
from warmstore.compiling.misses.key_descriptions import KeyDescription
from warmstore.compiling.packages.package import Package
from warmstore.compiling.store import artifact_json
from warmstore.records.format.manifest import Manifest, manifest_bytes
from warmstore.records.log.log_entries import SIZE, new_entry
from warmstore.remote.segment_bundles import Segment, bundle_bytes, segment_bytes
from warmstore.remote.segment_names import Checksums
from warmstore.remote.signing import Keyring, SigningKey
from warmstore.replicate.sidecar import Sidecar

SEED = 7
"""Of the hashes of log entries."""
KEY = SigningKey.parse("hmac:" + "5a" * 32)


def with_hashes(entries: Any) -> bytes:
    """The bytes of log entries, with their numbers and hashes."""
    entries["sequence"] = np.arange(len(entries))
    for at in range(len(entries)):
        entries["hash"][at] = xxhash.xxh3_64_intdigest(entries[at : at + 1].tobytes()[:-8], SEED)
    return bytes(entries.tobytes())


def segment(data: bytes) -> Segment:
    """A segment of these bytes, by their own name."""
    return Segment.parse(Checksums().name("s", data), data)


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


_FIELDS: dict[str, Any] = {
    "key": ws.Array("uint64", (2,)),
    "points": ws.Ragged("float32", ndim=2),
    "text": ws.Text("lz4"),
}
_MANIFEST = Manifest(_FIELDS, {"note": "é"}, id="5" * 32)
_ARTIFACT = Artifact("k/1", "cpp.so", "ef" * 32, 7, HERE, {"isa": ["avx"], "compute": [[9, 0]], "glibc": "2.3"})
_ARTIFACTS = artifact_json.describe([_ARTIFACT], {"job": ["k/1"]})
_SEGMENT = segment(segment_bytes(b"payload", ["ab" * 32]))
_BUNDLE = bundle_bytes([(_SEGMENT, 1)], ["h00000001-" + "ab" * 32], [("cd" * 32, 9)])
_SCHEMA = {"structure": ["array", "float32", 1, None, False], "fields": [{"name": "value", "kind": "bytes"}]}
_NOTHING = xxhash.xxh3_128_hexdigest(b"")
_NAME, _HASH = "ab" * 16, "cd" * 32

STORE = manifest_bytes(_MANIFEST)
LOG = with_hashes(np.concatenate([new_entry(kind, 1, rows=3, offset=8 * kind, body=40) for kind in range(12)]))
NUMBERS = LOG[: 2 * SIZE] + np.arange(5).tobytes()
COST = as_json({"seconds": 1.5, "samples": 3, "hits": 1, "misses": 2})
ABOUT = as_json({"format": 5, "steps": [{"name": "step"}], "schema": _SCHEMA})
HISTORY = b'{"v":1,"kind":"k","event":"use","at":1.5,"run":"r","n":0,"hits":3,"checksum":"0123456789abcdef"}\n' * 2
FOLDER = as_json({"kind": "store", "path": "/p", "created": 1.5})
LOOKUPS = as_json({"job": "j", "lookups": [{"key": "k", "hit": False, "reasons": ["r"], "changed": [], "left": True}]})
DESCRIPTION = KeyDescription({"input": "(3,)"}, {"add": 2}).to_bytes()
PACKAGE = Package("f", (("m", "1"),), (("L['x']", "t"),), ((1, None),), True, "avx2 256", b"data").to_bytes()
ARTIFACTS = as_json(_ARTIFACTS)
SIGNED = as_json({**_ARTIFACTS, "format": 2, "namespace": "here", "once": "ab"})
HEAD = as_json(
    {
        "format": 2,
        "shared": False,
        "store": STORE.decode(),
        "log": _NOTHING,
        "numbers": _NOTHING,
        "chunks": {"0": [_NAME, 4096]},
    }
)
SEGMENT = _SEGMENT.data
BUNDLE = zstandard.decompress(_BUNDLE, 1 << 20)
PACKED_BUNDLE = _BUNDLE
_PART = {
    "format": 3,
    "store": "5" * 32,
    "generation": 1,
    "written": 4,
    "about": _HASH,
    "host": "here",
    "gone": [2],
    "chunks": {"0": [_HASH, 4096, _HASH, "log", None], "1": [_NAME, 9, _HASH, "log", [3]]},
}
PART = b"\0".join(map(as_json, (_PART, {"fields": json.loads(STORE)["fields"], "metadata": {}})))
_ENTRY = new_entry(0, 0, rows=3, offset=64, header=64, body=128)
SIDECAR = Sidecar.of(memoryview(bytes(4096)), _ENTRY, b"h" * 8).tobytes()
CHUNKS = as_json({"0": [_NAME, 9, _HASH], "1": [_NAME, 9, None]})
NOTES = as_json({"file:///r": {"head": "h", "generation": 1, "log": 64}})
SIGNATURE = as_json(Keyring((KEY,)).sign("p", b"m"))
PROFILE = profile([0.1, 0.2], [100.0, 7.0], workers=(1, 2), squeezed=0.5)
