"""The model of power cuts: all states of tiny records, beside those that are listed by hand."""

import random
from pathlib import Path

import pytest
from tests.faults.power import (
    ROOT,
    Disk,
    Hole,
    Names,
    Operation,
    Pending,
    Promise,
    Resize,
    Sync,
    SyncFolder,
    Tree,
    Version,
    Write,
    digest,
)
from tests.faults.recording import Recorder, everywhere

from warmstore.storage.files import PLAIN, Files
from warmstore.storage.memory.mmap import GrowableMmap

A, B = b"a" * 512, b"b" * 512
ZEROS = bytes(512)


def create(name: str, node: int, folder: int = ROOT) -> Names:
    return Names(((folder, name, node),))


def remove(name: str) -> Names:
    return Names(((ROOT, name, None),))


def rename(old: str, new: str, node: int) -> Names:
    return Names(((ROOT, old, None), (ROOT, new, node)))


def after(*operations: Operation) -> Disk:
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    return disk


def there(data: bytes = b"", name: str = "f") -> tuple[Operation, ...]:
    """A file that is on the disk."""
    return create(name, 1), Write(1, 0, data), Sync(1), SyncFolder(ROOT)


def f(*contents: bytes) -> list[Tree]:
    return [{"f": content} for content in contents]


CASES: dict[str, tuple[tuple[Operation, ...], list[Tree]]] = {
    "nothing": ((), [{}]),
    "a name": ((create("f", 1),), [{}, {"f": b""}]),
    "a synced name": ((create("f", 1), SyncFolder(ROOT)), [{"f": b""}]),
    "the sync of a file is not that of its name": (
        (create("f", 1), Write(1, 0, b"x"), Sync(1)),
        [{}, {"f": b"x"}],
    ),
    "a name is not its bytes": (
        (create("f", 1), Write(1, 0, b"xyz"), SyncFolder(ROOT)),
        f(b"", bytes(3), b"xyz"),
    ),
    "two names in any order": ((create("f", 1), create("g", 2)), [{}, {"f": b""}, {"g": b""}, {"f": b"", "g": b""}]),
    "a removal": ((*there(b"x"), remove("f")), [{"f": b"x"}, {}]),
    "a rename is whole": (
        (*there(b"x", "t"), create("f", 2), Write(2, 0, b"y"), Sync(2), SyncFolder(ROOT), rename("f", "t", 2)),
        [{"f": b"y", "t": b"x"}, {"t": b"y"}],
    ),
    "a rename without its bytes": (
        (*there(b"x", "t"), create("f", 2), Write(2, 0, b"y"), rename("f", "t", 2), SyncFolder(ROOT)),
        [{"t": b""}, {"t": bytes(1)}, {"t": b"y"}],
    ),
    "a synced rename takes the creation with it": (
        (Names(((ROOT, "d", 5),), True), SyncFolder(ROOT), create("f", 1), rename("f", "g", 1), SyncFolder(5)),
        [{"d": None}, {"d": None, "f": b""}, {"d": None, "g": b""}],
    ),
    "a folder": (
        (Names(((ROOT, "d", 5),), True), create("f", 1, 5), SyncFolder(5)),
        [{}, {"d": None, "d/f": b""}],
    ),
    "a folder and what is in it": (
        (Names(((ROOT, "d", 5),), True), create("f", 1, 5)),
        [{}, {"d": None}, {"d": None, "d/f": b""}],
    ),
    "a sector is whole": ((*there(b"xy"), Write(1, 0, b"zz")), f(b"xy", b"zz")),
    "two sectors in any order": ((*there(A + A), Write(1, 0, B + B)), f(A + A, A + B, B + A, B + B)),
    "writes to one sector in their order": (
        (*there(b"xy"), Write(1, 0, b"a"), Write(1, 1, b"b")),
        f(b"xy", b"ay", b"ab"),
    ),
    "a size without its bytes": ((*there(A), Write(1, 512, B)), f(A, A + ZEROS, A + B)),
    "a size between": (
        (*there(), Write(1, 0, A + B)),
        f(b"", ZEROS, A, ZEROS + ZEROS, A + ZEROS, ZEROS + B, A + B),
    ),
    "a shorter file": (
        (*there(A + B), Resize(1, 3)),
        f(A + B, b"aaa" + bytes(509) + B, A + ZEROS, b"aaa" + bytes(1021), b"aaa"),
    ),
    "a longer file": ((*there(b"x"), Resize(1, 4)), f(b"x", b"x" + bytes(3))),
    "a hole": ((*there(A + B), Hole(1, 0, 512)), f(A + B, ZEROS + B)),
    "a database has its versions in order": (
        (create("f", 1), SyncFolder(ROOT), Version(1, b"one"), Version(1, b"two")),
        f(b"", b"one", b"two"),
    ),
    "only what came since the sync is lost": (
        (*there(b"x"), Write(1, 0, b"y"), Sync(1), Write(1, 0, b"z")),
        f(b"y", b"z"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_states(name: str) -> None:
    operations, expected = CASES[name]
    disk = after(*operations)
    every = disk.every(1000)
    assert every is not None
    assert len(every) == len(expected)
    assert {digest(tree) for tree in every} == {digest(tree) for tree in expected}
    for seed in range(100):  # what is drawn is among them
        assert disk.any(random.Random(seed)) in expected
    assert disk.complete() in expected
    assert disk.copy().every(1000) == every


def test_too_many_states_are_drawn() -> None:
    disk = after(*there(bytes(64 * 512)), Write(1, 0, b"x" * 64 * 512))
    assert disk.operations == 1
    assert disk.every(1000) is None
    drawn = {digest(disk.any(random.Random(seed))) for seed in range(300)}
    assert len(drawn) > 100
    assert digest({"f": bytes(64 * 512)}) in drawn
    assert digest({"f": b"x" * 64 * 512}) in drawn


def test_a_promise_changes_no_state() -> None:
    disk = after(create("f", 1), Promise(2, 3))
    assert disk.promise == Promise(2, 3)
    assert disk.operations == 1
    assert Pending(b"x", []).count == 1


def tells(root: Path, recorder: Recorder) -> None:
    """Assert that the record leads to what is there."""
    recorder.promise(0, 0)
    found = after(*recorder.operations).complete()
    for path in root.rglob("*"):
        assert found.pop(str(path.relative_to(root))) == (None if path.is_dir() else path.read_bytes())
    assert not found


def test_a_record_tells_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "f").write_bytes(b"old")
    recorder = Recorder(tmp_path)
    assert after(*recorder.operations).every(10) == [{"before": None, "before/f": b"old"}]
    with everywhere(recorder):
        files = Files()
        files.make_folder(tmp_path / "a" / "b")
        descriptor = PLAIN.create(tmp_path / "a" / "f")
        files.write(descriptor, [b"hello", b" world"], 3)
        files.allocate(descriptor, 0, 100)
        files.truncate(descriptor, 5)
        files.close(descriptor)
        files.rename(tmp_path / "a" / "f", tmp_path / "a" / "b" / "g")
        files.remove(tmp_path / "before" / "f")
        table = GrowableMmap(tmp_path / "table", files, create=4096)
        table.memory[1000] = 7
        files.sync_folder(tmp_path)
        table.memory[3000] = 8
        tells(tmp_path, recorder)
        (tmp_path / "outside").mkdir()
        files.make_folder(tmp_path / "outside" / "inside")
        files.remove_folder(tmp_path / "a")
        table.sync()
        tells(tmp_path, recorder)
    assert recorder.outside == ["outside"]
    assert Files.write is not recorder.write
    sizes = [one for one in after(*recorder.operations).copy().pending_names if isinstance(one, Names)]
    assert sizes  # what was removed last is not synced
