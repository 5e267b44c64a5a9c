"""Bundles: artifacts in one .tar.zst file, to copy to other machines or to keep with a CI job.

The first member is a manifest with the metadata of every artifact, the second is its signature; the others are blobs
named by their BLAKE3. A bundle is not trusted: names are not used as paths, sizes are declared before bytes are read,
and the store gets the artifacts only after all of them were verified.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import zstandard
from blake3 import blake3
from filelock import FileLock, Timeout

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.scratch.compiler_files import HEADER
from warmstore.compiling.store import artifact_json
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadArtifact, BadBundle, Damaged, NewerFormat, NoArtifact, TargetExists, WriteFailed
from warmstore.remote.signing import Keyring
from warmstore.storage.atomic import draft_of
from warmstore.storage.files import Files, FileStream
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.user_paths import user_path

FORMAT = 1
_MANIFEST, _SIGNATURE, _BLOB = "manifest.json", "manifest.sig", "blobs/"
_PURPOSE = "bundle"
_CLAIM = "import"
_MOST_MANIFEST = 64 << 20  # bytes of a manifest
_RATIO = 500  # greatest ratio of unpacked to packed size, beyond the first 64 MiB
_PIECE = 1 << 20

_log = logging.getLogger("warmstore")


@dataclass(frozen=True)
class BundleInfo:
    """The content of a bundle. `key`: the id of the key that signed the bundle; None if none did."""

    artifacts: int
    size: int
    jobs: tuple[str, ...]
    key: str | None


def export(
    store: ArtifactStore,
    path: str | os.PathLike[str],
    *,
    jobs: Sequence[str] | None = None,
    keyring: Keyring | None = None,
) -> BundleInfo:
    """Write the artifacts of some jobs, or all, into a bundle. The file appears only when it is complete.

    Damaged artifacts are left out. The bundle is signed if the keyring has a secret key. By default the keyring has the
    keys of the environment variables.

    Raises:
        TargetExists: The file exists.
        NoArtifact: A job is unknown, or there are no artifacts.
        NotTrusted: The keys of the environment variables cannot be used.
        OSError: The file cannot be written.
    """
    path = user_path(path)
    keyring = Keyring.from_environment() if keyring is None else keyring
    if path.exists():
        raise TargetExists(f"{path} exists already; remove it or choose another name")
    recorded = {name: store.job(name) for name in (store.stats().jobs if jobs is None else jobs)}
    for name, keys in recorded.items():
        if not keys:
            known = ", ".join(map(repr, store.stats().jobs)) or "none"
            raise NoArtifact(f"{store.folder} has no job {name!r}; its jobs: {known}")
    wanted = None if jobs is None else {key for keys in recorded.values() for key in keys}
    intact = []
    for artifact in store.all():
        if artifact.kind != HEADER and (wanted is None or artifact.key in wanted):
            with suppress(Damaged, NoArtifact):
                store.read(artifact)
                intact.append(artifact)
    if not intact:
        raise NoArtifact(f"{store.folder} has no artifacts for a bundle")
    head = {"format": FORMAT, "created": time.time()}
    manifest = json.dumps(head | artifact_json.describe(intact, recorded), sort_keys=True).encode()
    signature = keyring.sign(_PURPOSE, manifest)
    with (
        draft_of(path, files=store.files) as draft,
        io.BufferedWriter(FileStream(store.files, store.files.create(draft)), _PIECE) as file,
        zstandard.ZstdCompressor(level=9, write_checksum=True).stream_writer(file, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, _MANIFEST, manifest)
        if signature is not None:
            _add(tar, _SIGNATURE, json.dumps(signature).encode())
        for digest, artifact in {artifact.digest: artifact for artifact in intact}.items():
            _add(tar, _BLOB + digest, store.read(artifact))
    return BundleInfo(len(intact), path.stat().st_size, tuple(recorded), signature["key"] if signature else None)


def import_(store: ArtifactStore, path: str | os.PathLike[str], *, keyring: Keyring | None = None) -> BundleInfo:
    """Add all artifacts of a bundle to a store, or none if the bundle is invalid.

    If keys are configured, the bundle must be signed by one of them. Without keys, a warning says that the author of
    the bundle can run code here.

    Raises:
        FileNotFoundError: The file is missing.
        BadBundle: The file is damaged, hostile or no bundle.
        NotTrusted: The signature is missing or wrong.
        NewerFormat: A newer warmstore wrote the bundle.
        TooLarge: The store has no room for it.
        WriteFailed: The disk refused, or another import is running.
        ReadOnly: The store cannot be written.
    """
    path = user_path(path)
    keyring = Keyring.from_environment() if keyring is None else keyring
    with io.BufferedReader(FileStream(store.files, store.files.open(path))) as file, _staging(store) as folder:
        try:
            return _take(store, file, path.stat().st_size, path, folder, keyring)
        except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
            raise BadBundle(f"{path} cannot be unpacked ({error}); nothing was imported") from error


def _take(store: ArtifactStore, file: IO[bytes], packed: int, path: Path, folder: Path, keyring: Keyring) -> BundleInfo:
    """Import an open bundle of `packed` bytes."""
    most = (64 << 20) + _RATIO * packed
    unpacked = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_size=_PIECE)
    source = _Bounded(unpacked, min(most, _MOST_MANIFEST + (1 << 20)), path)
    with tarfile.open(fileobj=source, mode="r|") as tar:
        members = _members(tar, path)
        manifest = _content(tar, _expected(members, _MANIFEST, path), _MOST_MANIFEST, path)
        member = next(members, None)
        signature = None
        if member is not None and member.name == _SIGNATURE:
            signature = _json(_content(tar, member, 4096, path), path)
            member = next(members, None)
        key = None
        if keyring:
            key = keyring.check(_PURPOSE, manifest, signature if isinstance(signature, dict) else None, str(path))
        else:
            _log.warning("%s is not checked, since no key is configured; its author can run code here", path)
        artifacts, jobs = _read_manifest(_json(manifest, path), path)
        sizes = {artifact.digest: artifact.size for artifact in artifacts}
        declared = sum(sizes.values())
        if declared > most:
            raise BadBundle(f"{path} declares {declared:,} bytes, more than {_RATIO} times its size")
        store.reserve(_CLAIM, sum(size + 4096 for size in sizes.values()))
        source.limit = min(most, source.taken + declared + 2048 * len(sizes) + (1 << 20))
        while member is not None:
            digest = member.name.removeprefix(_BLOB)
            if not member.name.startswith(_BLOB) or digest not in sizes:
                raise BadBundle(f"{path} has {member.name!r} twice or not in its manifest; nothing was imported")
            _stage(tar, member, sizes.pop(digest), folder / digest, path, store.files)
            member = next(members, None)
    if sizes:
        raise BadBundle(f"{path} lacks {len(sizes)} of the blobs in its manifest; nothing was imported")
    store.adopt(artifacts, jobs, _CLAIM)
    return BundleInfo(len(artifacts), declared, tuple(jobs), key)


@contextmanager
def _staging(store: ArtifactStore) -> Iterator[Path]:
    """An empty folder in the store, for one import at a time. Removes the folder of a killed import first."""
    folder = store.folder / "import"
    if not store.read_only:
        store.folder.mkdir(parents=True, exist_ok=True)
    try:
        with uninterrupted():
            lock = FileLock(store.folder / "import.lock", timeout=0)
            lock.acquire()
    except Timeout as error:
        raise WriteFailed(None, "another import is running; wait for its end", str(store.folder)) from error
    try:
        store.release(_CLAIM)
        _remove(folder, store.files)
        store.files.make_folder(folder)
        yield folder
    finally:
        with uninterrupted(), ExitStack() as stack:  # all of them, also if one fails
            stack.callback(lock.release)
            stack.callback(store.release, _CLAIM)
            stack.callback(_remove, folder, store.files)


def _remove(folder: Path, files: Files) -> None:
    with suppress(FileNotFoundError):
        files.remove_folder(folder)


class _Bounded(io.RawIOBase):
    """Reads at most `limit` bytes from a stream in total, and raises BadBundle beyond: a decompression bomb."""

    def __init__(self, stream: Any, limit: int, path: Path) -> None:
        self._stream = stream
        self._path = path
        self.limit = limit
        self.taken = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part: bytes = self._stream.read(min(size, _PIECE) if size >= 0 else _PIECE)
        self.taken += len(part)
        if self.taken > self.limit:
            raise BadBundle(f"{self._path} unpacks to more bytes than it declares; nothing was imported")
        return part


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members. Each must be a plain file with a safe name."""
    for member in tar:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
            raise BadBundle(f"{path} has the member {member.name!r}, which is no plain file; nothing was imported")
        if "\\" in member.name or not {"", ".", ".."}.isdisjoint(member.name.split("/")):
            raise BadBundle(f"{path} has the unsafe name {member.name!r}; nothing was imported")
        yield member


def _expected(members: Iterator[tarfile.TarInfo], name: str, path: Path) -> tarfile.TarInfo:
    member = next(members, None)
    if member is None or member.name != name:
        raise BadBundle(f"{path} does not begin with {name}, so it is no bundle of warmstore")
    return member


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int, path: Path) -> bytes:
    if member.size > most:
        raise BadBundle(f"{member.name} in {path} has {member.size:,} bytes; the most is {most:,}")
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _stage(tar: tarfile.TarFile, member: tarfile.TarInfo, size: int, target: Path, path: Path, files: Files) -> None:
    """Write a blob into the staging folder, and compare its size and hash with the manifest."""
    file = tar.extractfile(member)
    assert file is not None
    hasher, found = blake3(), 0
    with FileStream(files, files.create(target)) as out:
        while part := file.read(_PIECE):
            found += len(part)
            if found > size:
                break
            hasher.update(part)
            out.write(part)
    if found != size or hasher.hexdigest() != target.name:
        raise BadBundle(f"{member.name} in {path} differs from its manifest; nothing was imported")


def _read_manifest(found: Any, path: Path) -> tuple[list[Artifact], dict[str, list[str]]]:
    """The artifacts and jobs of a manifest, validated."""
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat.of(path, version, FORMAT)
    try:
        if version != FORMAT:
            raise BadArtifact(f"not a manifest of format {FORMAT}")
        return artifact_json.read(found)
    except BadArtifact as error:
        raise BadBundle(f"the manifest of {path} is invalid ({error}); nothing was imported") from error


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def _json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadBundle(f"the manifest of {path} cannot be read ({error}); nothing was imported") from error
