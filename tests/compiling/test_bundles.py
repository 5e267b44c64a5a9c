"""Bundles carry artifacts whole, and nothing of a damaged or hostile one is ever seen in a store."""

import hashlib
import io
import json
import os
import random
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from blake3 import blake3
from tests import warm
from tests.compiling.children import content
from tests.compiling.environments import HERE, elsewhere
from tests.compiling.store.test_artifact_store import taken
from tests.slow import either, thinned

from warmstore.compiling.bundles import export, import_
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadBundle, NewerFormat, NoArtifact, NotTrusted, ReadOnly, TargetExists, TooLarge
from warmstore.remote.signing import Keyring, SigningKey

pytestmark = pytest.mark.forks

Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def source(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(tmp_path / "source", "64MB")
    for number in range(6):
        where = HERE if number % 2 else elsewhere(capability="avx2")
        job = "even" if number % 2 == 0 else "odd"
        store.put(
            f"dir/k{number}", "cpp.so", content(number, 5000), environment=where, job=job, requirements={"isa": []}
        )
    return store


@pytest.fixture
def target(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "target", "64MB")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSTORE_SIGNING_KEY", raising=False)
    monkeypatch.delenv("WARMSTORE_SIGNING_KEY_FILE", raising=False)


def unpack(path: Path) -> list[Member]:
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        data = stream.read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def pack(path: Path, members: list[Member], *, size: bool = True) -> Path:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members:
            if size and member.isreg():
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    path.write_bytes(zstandard.compress(out.getvalue()))
    return path


def file(name: str, data: bytes = b"") -> Member:
    return tarfile.TarInfo(name), data


def nothing_in(store: ArtifactStore) -> None:
    """No artifact, no blob, no leftover, no booked room."""
    assert store.all() == []
    assert store.stats().jobs == {}
    assert store.stats().claimed == 0
    assert not [path for path in (store.folder / "blobs").rglob("*") if path.is_file()]
    assert not (store.folder / "import").exists()


def test_everything_comes_over(source: ArtifactStore, target: ArtifactStore, tmp_path: Path) -> None:
    target.put("mine", "cpp.so", content(0, 5000), environment=HERE)
    written = export(source, tmp_path / "b.tar.zst")
    read = import_(target, tmp_path / "b.tar.zst")
    assert (written.artifacts, written.jobs, written.key) == (6, ("even", "odd"), None)
    assert (read.artifacts, read.jobs, read.key) == (6, ("even", "odd"), None)
    ours, theirs = source.all(), [one for one in target.all() if one.key != "mine"]
    assert [(a.key, a.kind, a.digest, a.environment, a.requirements, a.host, a.created) for a in ours] == [
        (a.key, a.kind, a.digest, a.environment, a.requirements, a.host, a.created) for a in theirs
    ]
    assert [target.read(one) for one in theirs] == [content(number, 5000) for number in range(6)]
    assert [one.key for one in target.all("even")] == ["dir/k0", "dir/k2", "dir/k4"]
    assert target.stats().claimed == 0
    assert target.verify() == []
    assert target.stats().counted >= taken(target.folder)
    import_(target, tmp_path / "b.tar.zst")  # again: the same
    assert len(target.all()) == 7


def test_a_bundle_lies_in_the_home_folder(
    source: ArtifactStore, target: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert export(source, "~/b").artifacts == import_(target, Path("~/b")).artifacts == 6
    assert (tmp_path / "b").exists()


@pytest.mark.parametrize("damage", [None, b"", bytes(5000)])
def test_a_blob_that_was_lost_or_damaged_here_comes_again(
    damage: bytes | None, source: ArtifactStore, target: ArtifactStore, tmp_path: Path
) -> None:
    export(source, tmp_path / "b")
    import_(target, tmp_path / "b")
    for artifact in target.all():
        path = target._blobs.path(artifact.digest)
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
    import_(target, tmp_path / "b")
    assert [target.read(artifact) for artifact in target.all()] == [content(number, 5000) for number in range(6)]
    assert target.verify() == []


def test_jobs_choose_and_a_damaged_artifact_stays_behind(
    source: ArtifactStore, target: ArtifactStore, tmp_path: Path
) -> None:
    damaged = source.all("odd")[0]
    source._blobs.path(damaged.digest).write_bytes(b"bad")
    assert export(source, tmp_path / "b", jobs=["odd"]).artifacts == 2
    import_(target, tmp_path / "b")
    assert [one.key for one in target.all()] == ["dir/k3", "dir/k5"]
    assert target.job("odd") == ["dir/k1", "dir/k3", "dir/k5"]
    with pytest.raises(NoArtifact, match=r"has no job 'none'; its jobs: 'even', 'odd'"):
        export(source, tmp_path / "c", jobs=["none"])
    with pytest.raises(TargetExists, match="exists already"):
        export(source, tmp_path / "b")
    source.clear()
    with pytest.raises(NoArtifact, match="has no artifacts for a bundle"):
        export(source, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "source", "target"]


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[list[Member]], list[Member]]:
    """Members with a changed manifest."""

    def change_members(members: list[Member]) -> list[Member]:
        manifest = json.loads(members[0][1])
        changed = change(manifest)
        return [(members[0][0], json.dumps(manifest if changed is None else changed).encode()), *members[1:]]

    return change_members


def linked(kind: bytes) -> Callable[[list[Member]], list[Member]]:
    def add(members: list[Member]) -> list[Member]:
        link = tarfile.TarInfo(members[1][0].name)
        link.type, link.linkname = kind, "/etc/passwd"
        return [members[0], (link, b""), *members[2:]]

    return add


def renamed(name: str) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [members[0], (tarfile.TarInfo(name), members[1][1]), *members[2:]]


def flip(members: list[Member]) -> list[Member]:
    data = bytearray(members[2][1])
    data[100] ^= 1
    return [*members[:2], (members[2][0], bytes(data)), *members[3:]]


def first(manifest: dict[str, Any], **changes: Any) -> None:
    manifest["artifacts"][0].update(changes)


HOSTILE: dict[str, Callable[[list[Member]], list[Member]]] = {
    "absolute path": renamed("/tmp/evil"),
    "climbing path": renamed("blobs/../../evil"),
    "blob that climbs": renamed("blobs/.."),
    "backslashes": renamed("blobs\\..\\evil"),
    "symbolic link": linked(tarfile.SYMTYPE),
    "hard link": linked(tarfile.LNKTYPE),
    "character device": linked(tarfile.CHRTYPE),
    "block device": linked(tarfile.BLKTYPE),
    "fifo": linked(tarfile.FIFOTYPE),
    "folder": linked(tarfile.DIRTYPE),
    "changed blob": flip,
    "missing blob": lambda members: members[:-1],
    "blob twice": lambda members: [*members, members[-1]],
    "extra blob": lambda members: [*members, file("blobs/" + "0" * 64, b"x")],
    "extra file": lambda members: [*members, file("evil.py", b"import os")],
    "swapped blobs": lambda members: [
        members[0], (members[1][0], members[2][1]), (members[2][0], members[1][1]), *members[3:]
    ],
    "no manifest": lambda members: members[1:],
    "late manifest": lambda members: [*members[1:], members[0]],
    "empty": lambda members: [],
    "manifest that is no JSON": lambda members: [file("manifest.json", b"{"), *members[1:]],
    "manifest that is deep": lambda members: [file("manifest.json", b"[" * 100_000), *members[1:]],
    "manifest of bytes": lambda members: [file("manifest.json", b"\xff\xfe\x00"), *members[1:]],
    "manifest that is a list": edited(lambda manifest: []),
    "manifest without format": edited(lambda manifest: manifest.pop("format") and manifest),
    "manifest without artifacts": edited(lambda manifest: manifest.pop("artifacts") and manifest),
    "digest that is a path": edited(lambda manifest: first(manifest, digest="../../../etc/passwd")),
    "digest in capitals": edited(lambda manifest: first(manifest, digest="A" * 64)),
    "negative size": edited(lambda manifest: first(manifest, size=-1)),
    "size that is a text": edited(lambda manifest: first(manifest, size="1")),
    "smaller size": edited(lambda manifest: first(manifest, size=10)),
    "larger size": edited(lambda manifest: first(manifest, size=6000)),
    "gigantic size": edited(lambda manifest: first(manifest, size=1 << 60)),
    "key that is a number": edited(lambda manifest: first(manifest, key=7)),
    "key that climbs": edited(lambda manifest: first(manifest, key="fxgraph/../../../evil")),
    "key that is absolute": edited(lambda manifest: first(manifest, key="/etc/passwd")),
    "key with a zero": edited(lambda manifest: first(manifest, key="a\0b")),
    "requirements that are a list": edited(lambda manifest: first(manifest, requirements=[])),
    "requirements of another type": edited(lambda manifest: first(manifest, requirements={"isa": 1})),
    "unknown environment": edited(lambda manifest: first(manifest, environment="0" * 32)),
    "changed environment": edited(
        lambda manifest: manifest["environments"].update(dict.fromkeys(manifest["environments"], '{"threads":1}'))
    ),
    "jobs that are a list": edited(lambda manifest: manifest.update(jobs=[])),
    "job keys that climb": edited(lambda manifest: manifest.update(jobs={"j": ["../x"]})),
}  # fmt: skip


@pytest.mark.parametrize("trick", thinned(3, HOSTILE))
def test_nothing_of_a_hostile_bundle_is_taken(
    trick: str, source: ArtifactStore, target: ArtifactStore, tmp_path: Path
) -> None:
    export(source, tmp_path / "good")
    before = {path for path in tmp_path.rglob("*") if target.folder not in path.parents}
    bad = pack(tmp_path / "bad", HOSTILE[trick](unpack(tmp_path / "good")))
    with pytest.raises(BadBundle, match=str(bad)):
        import_(target, bad)
    nothing_in(target)
    after = {path for path in tmp_path.rglob("*") if target.folder not in path.parents}
    assert after - before == {bad}
    import_(target, tmp_path / "good")
    assert len(target.all()) == 6


def test_bytes_that_are_no_bundle(source: ArtifactStore, target: ArtifactStore, tmp_path: Path) -> None:
    export(source, tmp_path / "good")
    good = (tmp_path / "good").read_bytes()
    noise = random.Random(5)
    taken_anyway = 0
    bads = [b"", b"x", noise.randbytes(5000), good[:4], good[:-1], good[: len(good) // 2], zstandard.compress(b"")]
    bads += [zstandard.compress(noise.randbytes(5000)), zstandard.compress(bytes(50_000))]
    for _ in range(60):
        at = noise.randrange(len(good))
        bads.append(good[:at] + bytes([good[at] ^ (1 << noise.randrange(8))]) + good[at + 1 :])
    for data in bads:
        (tmp_path / "bad").write_bytes(data)
        try:
            import_(target, tmp_path / "bad")
        except BadBundle:
            nothing_in(target)
        else:  # the end of the archive, after all that counts
            assert len(data) >= len(good) - 1
            assert [target.read(one) for one in target.all()] == [content(number, 5000) for number in range(6)]
            taken_anyway += 1
            target.clear()
    assert taken_anyway < 6
    with pytest.raises(FileNotFoundError):
        import_(target, tmp_path / "none")


def test_bombs_stop_early(source: ArtifactStore, target: ArtifactStore, tmp_path: Path) -> None:
    """A few KB that would unpack to 20 GB: as manifest, as blob, as a header, and a blob that hides it."""
    export(source, tmp_path / "good")
    members = unpack(tmp_path / "good")
    huge = 20 << 30

    def bomb(before: list[Member], name: str, kind: bytes = tarfile.REGTYPE) -> Path:
        head = io.BytesIO()
        with tarfile.open(fileobj=head, mode="w") as tar:
            for member, data in before:
                tar.addfile(member, io.BytesIO(data))
            info = tarfile.TarInfo(name)
            info.size, info.type = huge, kind
            start = head.tell()
            header = info.tobuf(tarfile.GNU_FORMAT)
        with open(tmp_path / "bomb", "wb") as out, zstandard.ZstdCompressor().stream_writer(out) as packed:
            packed.write(head.getvalue()[:start] + header)
            for _ in range(600):
                packed.write(bytes(1 << 20))
        return tmp_path / "bomb"

    declared = json.loads(members[0][1])
    honest = json.loads(members[0][1])
    honest["artifacts"][0]["size"] = huge
    big = file("manifest.json", json.dumps(honest).encode())
    big[0].size = len(big[1])
    digest = declared["artifacts"][0]["digest"]
    for make, said in (
        (lambda: bomb([], "manifest.json"), "has 21,474,836,480 bytes"),
        (lambda: bomb([], "x", b"x"), "unpacks to more bytes than it declares"),
        (lambda: bomb([], "x", b"L"), "unpacks to more bytes than it declares"),
        (lambda: bomb([members[0]], f"blobs/{digest}"), "differs from its manifest"),
        (lambda: bomb([members[0], members[1]], "x", b"x"), "unpacks to more bytes than it declares"),
        (lambda: bomb([big], f"blobs/{digest}"), "declares "),
    )[:: either(3, 1)]:
        path = make()
        assert path.stat().st_size < 200_000
        code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.bundles import import_
from warmstore.errors import BadBundle, TooLarge
try:
    import_(ArtifactStore({str(target.folder)!r}, "64MB"), {str(path)!r})
except BadBundle as error:
    sys.exit(0 if {str(path)!r} in str(error) and {said!r} in str(error) else str(error))
"""
        done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        nothing_in(target)
        assert taken(target.folder) < 8 << 20


def test_a_bundle_larger_than_the_store_is_refused_before_anything_is_evicted(
    source: ArtifactStore, tmp_path: Path
) -> None:
    for number in range(5):
        source.put(f"big{number}", "cpp.so", os.urandom(3_000_000), environment=HERE)
    export(source, tmp_path / "b")
    with ArtifactStore(tmp_path / "small", "10MB") as small:
        small.put("mine", "cpp.so", b"x", environment=HERE)
        with pytest.raises(TooLarge, match="raise max_size"):
            import_(small, tmp_path / "b")
        assert [one.key for one in small.all()] == ["mine"]
        assert small.stats().claimed == 0


def test_a_newer_bundle_says_so(source: ArtifactStore, target: ArtifactStore, tmp_path: Path) -> None:
    export(source, tmp_path / "good")
    newer = pack(tmp_path / "new", edited(lambda manifest: manifest.update(format=2))(unpack(tmp_path / "good")))
    with pytest.raises(NewerFormat, match=r"has format 2; this warmstore reads up to 1. Upgrade"):
        import_(target, newer)
    nothing_in(target)


@pytest.mark.parametrize("kind", ["hmac", "ed25519"])
def test_with_a_key_only_what_it_signed_is_taken(
    kind: str, source: ArtifactStore, target: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "ed25519":
        pytest.importorskip("cryptography")
    key = SigningKey.new(kind)
    signed, unsigned = tmp_path / "signed", tmp_path / "unsigned"
    export(source, signed, keyring=Keyring((key,)))
    export(source, unsigned, keyring=Keyring())
    mine = Keyring((key.public,))
    with pytest.raises(NotTrusted, match="it is not signed, which is required when a key is configured"):
        import_(target, unsigned, keyring=mine)
    with pytest.raises(NotTrusted, match=f"signed with the key {key.id}, which you do not have"):
        import_(target, signed, keyring=Keyring((SigningKey.new(kind),)))
    other = Keyring((SigningKey.new("hmac"),))
    with pytest.raises(NotTrusted, match="which you do not have"):
        import_(target, signed, keyring=other)
    members = unpack(signed)
    forged = pack(tmp_path / "forged", edited(lambda manifest: first(manifest, seconds=9.0))(members))
    with pytest.raises(NotTrusted, match="it was changed"):
        import_(target, forged, keyring=mine)
    with pytest.raises(NotTrusted, match="it is not signed"):
        import_(target, pack(tmp_path / "stripped", [members[0], *members[2:]]), keyring=mine)
    with pytest.raises(BadBundle):
        import_(target, pack(tmp_path / "flipped", [*members[:1], *flip(members[1:])]), keyring=mine)
    nothing_in(target)
    assert not caplog.records
    assert import_(target, signed, keyring=mine).key == key.id
    assert len(target.all()) == 6


def test_without_a_key_a_bundle_is_taken_and_that_is_said(
    source: ArtifactStore, target: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export(source, tmp_path / "b", keyring=Keyring((SigningKey.new(),)))
    import_(target, tmp_path / "b", keyring=Keyring())
    assert "is not checked, since no key is configured; its author can run code here" in caplog.text


def test_keys_of_the_environment_sign_and_check(
    source: ArtifactStore, target: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(source, tmp_path / "unsigned")
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", SigningKey.new().line)
    assert export(source, tmp_path / "signed").key is not None
    with pytest.raises(NotTrusted):
        import_(target, tmp_path / "unsigned")
    import_(target, tmp_path / "signed")


@pytest.mark.parametrize("moment", range(0, 16, 3))
def test_killed_while_importing(moment: int, source: ArtifactStore, target: ArtifactStore, tmp_path: Path) -> None:
    """At any change of a file name: all of the bundle is there, or none, and the next import cleans up."""
    export(source, tmp_path / "b")
    target.close()
    child = os.fork()
    if not child:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            staged = event == "open" and "/import/" in str(arguments[0])
            if staged or (event == "os.rename" and "/import/" in str(arguments[0])):
                seen += 1
                if seen > moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        import_(ArtifactStore(target.folder, "64MB"), tmp_path / "b")
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with ArtifactStore(target.folder, "64MB") as store:
        assert len(store.all()) == (6 if ended == 0 else 0)
        assert store.stats().counted + store.stats().claimed >= taken(store.folder)
        import_(store, tmp_path / "b")
        assert len(store.all()) == 6
        assert store.verify() == []
        assert store.stats().claimed == 0
        assert store.stats().counted >= taken(store.folder)
    assert ended == -signal.SIGKILL or moment > 10


def test_a_store_that_cannot_be_written_imports_nothing(
    source: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(source, tmp_path / "b")
    monkeypatch.setattr("warmstore.compiling.store.artifact_store._writable", lambda folder: False)
    with ArtifactStore(tmp_path / "source") as store, pytest.raises(ReadOnly):
        import_(store, tmp_path / "b")


def test_blobs_are_named_by_blake3(source: ArtifactStore, tmp_path: Path) -> None:
    """The format as docs/compile.md has it, read without warmstore."""
    export(source, tmp_path / "b", keyring=Keyring((SigningKey.parse("hmac:" + "00" * 32),)))
    (_, manifest), (_, signature), *blobs = unpack(tmp_path / "b")
    assert {f"blobs/{one['digest']}" for one in json.loads(manifest)["artifacts"]} == {info.name for info, _ in blobs}
    assert all(info.name == f"blobs/{blake3(data).hexdigest()}" for info, data in blobs)
    import hmac

    wanted = hmac.new(bytes(32), b"warmstore bundle\0" + manifest, hashlib.sha256).hexdigest()
    assert json.loads(signature)["signature"] == wanted
