"""Staged writes: parts of many tasks, of which one commit makes all or none visible, in order."""

import errno
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child
from tests.faults.seam import Counting, Killing
from tests.remote.servers import BUCKET, S3
from tests.replicate.network import Network

import warmstore as ws
from warmstore.errors import WriteFailed
from warmstore.remote.objects import Objects
from warmstore.replicate import staged_write
from warmstore.replicate.remote_snapshot import RemoteSnapshot, write_head
from warmstore.replicate.staged_part import StagedPart
from warmstore.storage.files import Files

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

FIELDS: dict[str, Any] = {"n": ws.Array("int64"), "b": ws.Bytes("zstd")}


def columns(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {"n": numbers, "b": [b"%d" % number * (number % 9) for number in numbers.tolist()]}


def stage(write: ws.StagedWrite, first: int, count: int = 10) -> StagedPart:
    """A part, as a task of another process writes it: through pickle, in two flushes."""
    with pickle.loads(pickle.dumps(write)).part() as part:
        part.extend(columns(first, count - 1))
        part.append({name: values[-1] for name, values in columns(first, count).items()})
    assert part.staged is not None
    return pickle.loads(pickle.dumps(part.staged))


def numbers(target: str | Path) -> list[int]:
    with ws.RecordStore.open(target) as store:
        values = store.gather(slice(None))
        expected = [columns(number, 1)["b"][0] for number in values["n"].tolist()]
        assert [bytes(value) for value in values["b"]] == expected
        return values["n"].tolist()


def expected(*firsts: int) -> list[int]:
    return [number for first in firsts for number in range(first, first + 10)]


@pytest.fixture(params=["folder", "local URL", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cached")
    if request.param == "s3":
        server: S3 = request.getfixturevalue("s3_server")
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{tmp_path.name}"
    (tmp_path / "team").mkdir()
    return str(tmp_path / "team" / "s") if request.param == "folder" else f"file://{tmp_path}/team/s"


def left_over(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "team").iterdir() if path.name != "s"]


def test_parts_appear_together_and_in_the_order_of_the_commit(target: str, tmp_path: Path) -> None:
    write = ws.StagedWrite(target, fields=FIELDS, metadata={"made": "by tasks"})
    parts = [stage(write, first) for first in (100, 200, 300)]
    with pytest.raises((ws.NotAStore, FileNotFoundError)):
        ws.RecordStore.open(target)
    again = stage(write, 200)  # a task that ran twice
    assert write.commit([parts[2], again, parts[0]]) == 30
    assert numbers(target) == expected(300, 200, 100)
    with ws.RecordStore.open(target) as store:
        assert store.metadata == {"made": "by tasks"}
        assert [len(part) for part in store.chunk_ranges()] == [10, 10, 10]
    with pytest.raises(ws.StoreExists):
        ws.StagedWrite(target, fields=FIELDS)
    if "://" not in target:
        assert left_over(tmp_path) == []
        with ws.RecordStore.open(target, "a") as store:  # a store like any other
            assert store.verify().ok
            store.append({"n": 7, "b": b""})
            store.delete(0)
            store.rebalance()
            assert store["n"][:3].tolist() == [7, 301, 302]


def test_parts_are_appended_to_a_store(target: str) -> None:
    with ws.StagedWrite(target, fields=FIELDS) as write:
        write.commit([stage(write, 100)])
    reader = ws.RecordStore.open(target)
    one, other = (ws.StagedWrite(target, append=True) for _ in range(2))
    parts, others = [stage(one, 300), stage(one, 200)], [stage(other, 400)]
    reader.refresh()
    assert len(reader) == 10
    other.commit(others)
    one.commit(parts)
    reader.refresh()
    assert reader["n"][:].tolist() == expected(100, 400, 300, 200)
    assert numbers(target) == expected(100, 400, 300, 200)
    reader.close()
    with pytest.raises(ws.SchemaMismatch, match="fields"):
        ws.StagedWrite(target, append=True, fields={"n": ws.Array("int32")})


def test_an_abort_leaves_nothing(target: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ws.StagedWrite(target, fields=FIELDS) as write:
        stage(write, 1 // (stage(write, 100).rows - 10))
    if "://" not in target:
        assert left_over(tmp_path) == []
        with pytest.raises(ws.NotAStore, match="aborted"):
            write.part()
    elif target.startswith("file"):
        left = [path for path in (tmp_path / "team").rglob("*") if path.is_file()]
        assert left == []
    with ws.StagedWrite(target, fields=FIELDS) as write:
        write.commit([stage(write, 200)])
    assert numbers(target) == expected(200)


def test_a_part_that_is_discarded_never_writes_again(tmp_path: Path) -> None:
    """Its descriptors may be other files' by the time that it is collected."""
    with ws.StagedWrite(tmp_path / "s", fields=FIELDS) as write:
        part = write.part()
        part.extend(columns(0, 4))
        part._store.flush()
        part.extend(columns(4, 2))
        part.discard()
        others = [(tmp_path / str(number)).open("w+b") for number in range(9)]  # with the descriptors that are free
        part._store.close()
        del part
        for other in others:
            assert not os.fstat(other.fileno()).st_size
            other.close()
        assert not write.commit([])
    assert numbers(tmp_path / "s") == []


@pytest.mark.parametrize("failing", ["the disk", "the remote"])
def test_a_part_that_cannot_be_finished_leaves_no_temporary_files(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise WriteFailed(errno.ENOSPC, "it is full")

    write = ws.StagedWrite(f"file://{tmp_path}/remote", fields=FIELDS, work_dir=tmp_path / "work")
    part = write.part()
    part.extend(columns(0, 10))
    with monkeypatch.context() as patch:
        if failing == "the disk":
            patch.setattr(part._store, "close", fail)
        else:
            patch.setattr(staged_write, "send_part", fail)
        with pytest.raises(WriteFailed), part:
            part.extend(columns(10, 10))
    assert list((tmp_path / "work").iterdir()) == []


def test_what_a_remote_commit_leaves_is_what_it_names(tmp_path: Path) -> None:
    write = ws.StagedWrite(f"file://{tmp_path}/s", fields=FIELDS)
    parts = [stage(write, first) for first in (100, 100, 200)]
    with pytest.raises(ZeroDivisionError), write.part() as part:
        part.extend(columns(0, 1 // 0))
    write.commit(parts[1:])
    assert len(list((tmp_path / "s" / "chunks").iterdir())) == 4  # two chunks, and the hashes of their blocks
    assert not [path for path in (tmp_path / "s" / "staged").rglob("*") if path.is_file()]


@pytest.mark.parametrize("append", [False, True])
def test_a_remote_commit_whose_answer_was_lost_is_made_once(
    append: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, before = f"file://{tmp_path}/s", expected(0) if append else []
    if append:
        with ws.StagedWrite(url, fields=FIELDS) as first:
            first.commit([stage(first, 0)])
    write = ws.StagedWrite(url, append=append, fields=FIELDS)
    parts, late = [stage(write, first) for first in (200, 100)], stage(write, 300)

    def lost(objects: Objects, head: RemoteSnapshot) -> bool:
        assert write_head(objects, head)
        raise ws.RemoteUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(staged_write, "add_head" if append else "write_head", lost)
        with pytest.raises(ws.RemoteUnavailable):
            write.commit(parts)
    assert numbers(url) == before + expected(200, 100)
    assert pickle.loads(pickle.dumps(write)).commit(parts) == 20
    assert numbers(url) == before + expected(200, 100)
    assert not [path for path in (tmp_path / "s" / "staged").rglob("*") if path.is_file()]
    with pytest.raises(ValueError, match="2 of 3 chunks"):
        write.commit([*parts, late])
    ws.RecordStore.clone(url, tmp_path / "copy").close()
    with ws.RecordStore.open(tmp_path / "copy", "a") as copy:
        copy.delete(len(copy) - 1)
        copy.rebalance()  # the entries of the parts stay
        copy.push(url)
    write.commit(parts)
    assert numbers(url) == (before + expected(200, 100))[:-1]
    with pytest.raises(ws.StoreExists, match="holds a store already"):
        ws.StagedWrite(url, fields=FIELDS)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("append", [False, True])
def test_a_remote_commit_that_failed_is_repeated_after_its_block(
    append: bool, is_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, before, lost = f"file://{tmp_path}/s", expected(0) if append else [], list[RemoteSnapshot]()
    if append:
        with ws.StagedWrite(url, fields=FIELDS) as first:
            first.commit([stage(first, 0)])

    write = ws.StagedWrite(url, append=append, fields=FIELDS)
    _, *parts = [stage(write, first) for first in (300, 200, 100)]

    def fail(objects: Objects, head: RemoteSnapshot) -> bool:
        lost.append(head)
        raise ws.RemoteUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(staged_write, "add_head" if append else "write_head", fail)
        with pytest.raises(ws.RemoteUnavailable), write:
            write.commit(parts)
    if is_late:  # the remote goes on with a request that the client has given up
        assert write_head(Objects(url), lost[0])
        assert numbers(url) == before + expected(200, 100)
    assert write.commit(parts) == 20
    assert numbers(url) == before + expected(200, 100)
    assert len(list((tmp_path / "s" / "chunks").iterdir())) == 2 * (2 + append)  # the other part is removed


def test_a_push_beside_a_commit_to_a_remote_that_cannot_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both heads stayed, so that nobody could use the remote any more, and the commit had been acknowledged."""
    network, url = Network(conditional=False), (tmp_path / "remote").as_uri()
    network.use(monkeypatch)
    with ws.RecordStore.create(tmp_path / "a", FIELDS) as store:
        store.push(url)

        def push() -> None:
            store.extend(columns(len(store), 1))
            store.push(url)

        for at in range(8):
            write = ws.StagedWrite(url, append=True)
            part = stage(write, 1000 + at, 1)
            with network.with_fault("act", at, push):
                write.commit([part])
            assert store.pull(url).records == 1
        assert sorted(store["n"][:]) == [*range(0, 16, 2), *range(1000, 1008)]


def test_fields_may_come_from_the_parts_and_must_agree(tmp_path: Path) -> None:
    write = ws.StagedWrite(tmp_path / "s")
    with pytest.raises(ws.SchemaMismatch, match="needs fields"):
        write.part()
    with pytest.raises(ws.SchemaMismatch, match="nothing was written"):
        write.commit([])
    parts = []
    for kind in ("int64", "int32"):
        with write.part({"n": ws.Array(kind)}) as part:
            part.extend({"n": np.arange(3, dtype=kind)})
        parts.append(part.finish())
    with pytest.raises(ws.SchemaMismatch, match="part 1 has the fields"):
        write.commit(parts)
    assert write.commit(parts[:1]) == 3


def test_parts_with_their_fields_in_another_order_are_refused(target: str) -> None:
    with ws.StagedWrite(target) as write:
        parts = []
        for fields in (FIELDS, dict(reversed(FIELDS.items()))):
            with write.part(fields) as part:
                part.extend(columns(0, 10))
            parts.append(part.finish())
        with pytest.raises(ws.SchemaMismatch, match="part 1 has the fields"):
            write.commit(parts)
        write.commit(parts[:1])
    assert numbers(target) == expected(0)


def test_a_store_whose_fields_were_changed_meanwhile_takes_no_parts(target: str, tmp_path: Path) -> None:
    folder = target if "://" not in target else str(tmp_path / "source")
    with ws.RecordStore.create(folder, FIELDS) as store:
        store.extend(columns(0, 10))
        if folder != target:
            store.push(target)
        write = ws.StagedWrite(target, append=True)
        part = stage(write, 10)
        store.add_field("more", ws.Array("int8"), lambda rows: np.zeros(len(rows["n"]), np.int8))
        if folder != target:
            store.push(target)
        with pytest.raises(ws.SchemaMismatch, match="write the parts again"):
            write.commit([part])
        write.abort()
    assert numbers(target) == expected(0)


def test_two_writes_that_create_one_store(tmp_path: Path) -> None:
    one, other = (ws.StagedWrite(tmp_path / "s", fields=FIELDS) for _ in range(2))
    one.commit([stage(one, 100)])
    with pytest.raises(ws.StoreExists), other:
        other.commit([stage(other, 200)])
    assert numbers(tmp_path / "s") == expected(100)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


_TASK = """
import sys, warmstore as ws, numpy as np, pickle
write = pickle.loads(bytes.fromhex(sys.argv[1]))
part = write.part()
part.extend({"n": np.arange(10), "b": [b""] * 10})
part._store.flush()
print("written", flush=True)
sys.stdin.read()
"""


class Beside(Files):
    """Another write to the same store begins when the folder of one was made."""

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        if path.name.endswith(".staged"):
            ws.StagedWrite(path.parent / "store", fields=FIELDS).abort()


def test_a_write_that_begins_beside_another_one(tmp_path: Path) -> None:
    write = ws.StagedWrite(tmp_path / "store", fields=FIELDS, files=Beside())
    write.commit([stage(write, 100)])
    assert numbers(tmp_path / "store") == expected(100)


def test_a_killed_task_and_a_killed_write_leave_nothing(tmp_path: Path) -> None:
    write = ws.StagedWrite(tmp_path / "s", fields=FIELDS)
    command = [sys.executable, "-c", _TASK, pickle.dumps(write).hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "written\n"
        task.kill()
    write.commit([stage(write, 100)])
    assert numbers(tmp_path / "s") == expected(100)

    begin = (
        f"import os, warmstore as ws; ws.StagedWrite({str(tmp_path / 't')!r}); os.kill(os.getpid(), {signal.SIGKILL})"
    )
    subprocess.run([sys.executable, "-c", begin], check=False)
    assert len(list(tmp_path.glob(".t.*.staged"))) == 1
    alive = ws.StagedWrite(tmp_path / "t", fields=FIELDS)
    ws.StagedWrite(tmp_path / "t", fields=FIELDS).abort()
    assert len(list(tmp_path.glob(".t.*.staged"))) == 1
    alive.commit([stage(alive, 100)])


class Failing(Counting):
    """Refuses the operation of this number, counted from an empty `seen`, once."""

    at: int | None = None

    def before(self, name: str) -> None:
        if self.at == len(self.seen):
            self.at = None
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("append", [False, True])
def test_a_commit_that_failed_at_any_operation_is_repeated(append: bool, tmp_path: Path) -> None:
    path, at, failed = tmp_path / "s", 0, 0
    while at is not None:
        subprocess.run(["rm", "-rf", path], check=True)
        if append:
            with ws.RecordStore.create(path, FIELDS) as store:
                store.extend(columns(0, 10))
        files = Failing()
        with ws.StagedWrite(path, append=append, fields=FIELDS, files=files) as write:
            parts = [stage(write, first) for first in (100, 200, 300)]
            files.seen.clear()
            files.at = at
            try:
                write.commit(parts)
            except WriteFailed:
                failed += 1
                assert (numbers(path) if path.exists() else []) == (expected(0) if append else [])
                assert write.commit(parts) == 30
        assert numbers(path) == expected(*([0] if append else []), 100, 200, 300)
        at = None if files.at is not None else at + 1
    assert failed > 10


@pytest.mark.parametrize("append", [False, True])
def test_a_part_that_is_given_twice_stays(append: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    if append:
        ws.RecordStore.create(path, FIELDS).close()
    with ws.StagedWrite(path, append=append, fields=FIELDS) as write:
        part = stage(write, 100)
        with pytest.raises(FileNotFoundError):
            write.commit([part, part])
        write.commit([part])
    assert numbers(path) == expected(100)
    with ws.RecordStore.open(path) as store:
        assert store.verify().ok
        assert len(list((path / "g0001").glob("*.arrow"))) == 1


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.parametrize("append", [False, True])
def test_a_commit_killed_at_any_operation_is_there_or_not(append: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"

    def scenario(files: Counting | Killing) -> ws.StagedWrite:
        return ws.StagedWrite(path, append=append, fields=FIELDS, files=files)

    def prepare() -> None:
        for old in tmp_path.iterdir():
            subprocess.run(["rm", "-rf", old], check=True)
        if append:
            with ws.RecordStore.create(path, FIELDS) as store:
                store.extend(columns(0, 10))

    def commit(files: Counting | Killing, at: int | None = None) -> None:
        write = scenario(files)
        parts = [stage(write, first) for first in (100, 200, 300)]
        if at is not None:
            files.left = at
        else:
            files.seen.clear()
        write.commit(parts)

    prepare()
    counting = Counting()
    commit(counting)
    before, after = expected(0) if append else [], expected(*([0] if append else []), 100, 200, 300)
    assert numbers(path) == after
    found = []
    for at, name in enumerate(counting.seen):
        for moment in ("before", "middle", "after") if name == "write" else ("before", "after"):
            prepare()
            ended = in_child(lambda say: commit(Killing(1 << 30, moment), at))  # noqa: B023 - called at once
            assert ended.signal == signal.SIGKILL, (at, name, ended.error)
            present = numbers(path) if path.exists() else []
            assert present in (before, after), (at, name, moment)
            found.append(present == after)
            with ws.StagedWrite(path, append=path.exists(), fields=FIELDS) as write:
                write.commit([stage(write, 500)])
            assert numbers(path) == [*present, *expected(500)], (at, name, moment)
            with ws.RecordStore.open(path, "a") as store:
                assert store.verify().ok
    assert found == sorted(found)
    assert any(found)
    assert not all(found)
