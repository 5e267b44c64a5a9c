"""Bundles: artifacts in one .tar.zst file, to copy to other machines or to keep with a CI job.

The first member is a manifest with the metadata of every artifact, the second is its signature; the others are blobs
named by their BLAKE3. A bundle may come from anywhere, so it is not trusted: names are never used as paths, sizes are
declared before they are read, and the store gets the artifacts only after all of them were verified.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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

FORMAT = 1
_MANIFEST, _SIGNATURE, _BLOB = "manifest.json", "manifest.sig", "blobs/"
_PURPOSE = "bundle"
_CLAIM = "import"
_MOST_MANIFEST = 64 << 20  # bytes of a manifest
_RATIO = 500  # times that a bundle may grow when it is unpacked, beyond the first 64 MiB
_PIECE = 1 << 20

_log = logging.getLogger("warmstore")


@dataclass(frozen=True)
class BundleInfo:
    """What `export` wrote or `import_` took. `key` is the id of the key that signed it, None where none did."""

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

    Damaged artifacts are left out. The bundle is signed if the keyring has a secret key; by default the keyring holds
    the keys of the environment.

    Raises:
        TargetExists: there is a file of that name.
        NoArtifact: nobody recorded a job of that name, or there is nothing to write.
        NotTrusted: the keys of the environment cannot be used.
        OSError: the file cannot be written.
    """
    path = Path(path)
    keyring = Keyring.from_environment() if keyring is None else keyring
    if path.exists():
        raise TargetExists(f"{path} is there already; remove it or choose another name")
    recorded = {name: store.job(name) for name in (store.stats().jobs if jobs is None else jobs)}
    for name, keys in recorded.items():
        if not keys:
            raise NoArtifact(f"no job {name!r} is known to {store.folder}; it knows {_listed(store.stats().jobs)}")
    wanted = None if jobs is None else {key for keys in recorded.values() for key in keys}
    chosen = [one for one in store.all() if one.kind != HEADER and (wanted is None or one.key in wanted)]
    whole = [one for one in chosen if _is_whole(store, one)]
    if not whole:
        raise NoArtifact(f"there is nothing in {store.folder} to write a bundle of")
    manifest = json.dumps(
        {
            "format": FORMAT,
            "created": time.time(),
            **artifact_json.describe(whole, recorded),
        },
        sort_keys=True,
    ).encode()
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
        for digest, one in {one.digest: one for one in whole}.items():
            _add(tar, _BLOB + digest, store.read(one))
    return BundleInfo(len(whole), path.stat().st_size, tuple(recorded), signature["key"] if signature else None)


def import_(store: ArtifactStore, path: str | os.PathLike[str], *, keyring: Keyring | None = None) -> BundleInfo:
    """Take all artifacts of a bundle into a store, or none if anything is wrong with it.

    With keys configured, the bundle must be signed by one of them. Without keys, the author of the bundle can run code
    here, as the author of any installed program can; a warning says so.

    Raises:
        FileNotFoundError: there is no such file.
        BadBundle: it is damaged, hostile or no bundle.
        NotTrusted: its signature is missing or wrong.
        NewerFormat: a newer warmstore wrote it.
        TooLarge: the store has no room for it.
        WriteFailed: the disk refused, or another import is going on.
        ReadOnly: the store cannot be written.
    """
    path = Path(path)
    keyring = Keyring.from_environment() if keyring is None else keyring
    with io.BufferedReader(FileStream(store.files, store.files.open(path))) as file, _staging(store) as folder:
        try:
            return _take(store, file, path.stat().st_size, path, folder, keyring)
        except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
            raise BadBundle(f"{path} cannot be unpacked ({error}); nothing of it was taken") from error


def _take(store: ArtifactStore, file: IO[bytes], packed: int, path: Path, folder: Path, keyring: Keyring) -> BundleInfo:
    """`packed`: bytes of the bundle."""
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
        key = _trusted(keyring, manifest, signature, path)
        artifacts, jobs = _read_manifest(_json(manifest, path), path)
        sizes = {one.digest: one.size for one in artifacts}
        declared = sum(sizes.values())
        if declared > most:
            raise BadBundle(f"{path} claims to unpack to {declared:,} bytes, more than {_RATIO} times its size")
        store.reserve(_CLAIM, sum(size + 4096 for size in sizes.values()))
        source.limit = min(most, source.taken + declared + 2048 * len(sizes) + (1 << 20))
        while member is not None:
            digest = member.name.removeprefix(_BLOB)
            if not member.name.startswith(_BLOB) or digest not in sizes:
                raise BadBundle(
                    f"{path} has {member.name!r} in it twice, or it is not in its manifest; nothing was taken"
                )
            _stage(tar, member, sizes.pop(digest), folder / digest, path, store.files)
            member = next(members, None)
    if sizes:
        raise BadBundle(f"{path} lacks {len(sizes)} of the blobs that its manifest names; nothing was taken")
    store.adopt(artifacts, jobs, _CLAIM)
    return BundleInfo(len(artifacts), declared, tuple(jobs), key)


@contextmanager
def _staging(store: ArtifactStore) -> Iterator[Path]:
    """An empty folder in the store, for one import at a time. The folder of a killed import is removed first."""
    folder = store.folder / "import"
    if not store.read_only:
        store.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(store.folder / "import.lock", timeout=0):
            store.release(_CLAIM)
            _remove(folder, store.files)
            store.files.make_folder(folder)
            try:
                yield folder
            finally:
                _remove(folder, store.files)
                store.release(_CLAIM)
    except Timeout as error:
        raise WriteFailed(None, "another import is going on; wait for it", str(store.folder)) from error


def _remove(folder: Path, files: Files) -> None:
    with suppress(FileNotFoundError):
        files.remove_folder(folder)


class _Bounded(io.RawIOBase):
    """Reads at most `limit` bytes from a stream in total, and raises beyond: decompression bombs fill no disk."""

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
            raise BadBundle(f"{self._path} unpacks to more than it declares; nothing of it was taken")
        return part


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members, each a plain file with a plain name."""
    for member in tar:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
            raise BadBundle(f"{path} has {member.name!r} in it, which is no plain file; nothing was taken")
        parts = member.name.split("/")
        if member.name.startswith("/") or "\\" in member.name or not all(part not in ("", ".", "..") for part in parts):
            raise BadBundle(f"{path} has the name {member.name!r} in it, which leads elsewhere; nothing was taken")
        yield member


def _expected(members: Iterator[tarfile.TarInfo], name: str, path: Path) -> tarfile.TarInfo:
    member = next(members, None)
    if member is None or member.name != name:
        raise BadBundle(f"{path} does not begin with {name}: it is no bundle of warmstore's")
    return member


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int, path: Path) -> bytes:
    if member.size > most:
        raise BadBundle(f"{member.name} in {path} has {member.size:,} bytes, and {most:,} at most are taken")
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _stage(tar: tarfile.TarFile, member: tarfile.TarInfo, size: int, target: Path, path: Path, files: Files) -> None:
    """Write a blob into the staging folder, if it is what the manifest says."""
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
        raise BadBundle(f"{member.name} in {path} is not what the manifest says; nothing was taken")


def _trusted(keyring: Keyring, manifest: bytes, signature: Any, path: Path) -> str | None:
    if keyring:
        return keyring.check(_PURPOSE, manifest, signature if isinstance(signature, dict) else None, str(path))
    _log.warning("%s is taken unchecked, for no key is configured: whoever made it may run code here", path)
    return None


def _read_manifest(found: Any, path: Path) -> tuple[list[Artifact], dict[str, list[str]]]:
    """The artifacts and jobs of a manifest, validated."""
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat(f"{path} has format {version!r}, and this warmstore knows {FORMAT}; upgrade warmstore")
    try:
        if version != FORMAT:
            raise BadArtifact(f"not a manifest of format {FORMAT}")
        return artifact_json.read(found)
    except BadArtifact as error:
        raise BadBundle(f"the manifest of {path} is not one ({error}); nothing was taken") from error


def _is_whole(store: ArtifactStore, one: Artifact) -> bool:
    try:
        store.read(one)
    except (Damaged, NoArtifact):
        return False
    return True


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    tar.addfile(member, io.BytesIO(content))


def _json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadBundle(f"the manifest of {path} cannot be read ({error}); nothing was taken") from error


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(map(repr, names)) or "none"
