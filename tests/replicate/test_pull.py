"""A pull beside writers of the same folder, and after processes that died: no row is lost, and nothing is left over."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child, well

import warmstore as ws
from warmstore.errors import Diverged
from warmstore.records.maintenance.sealing import seal_abandoned
from warmstore.replicate import pull as pull_module
from warmstore.replicate.block_cache import BlockCache
from warmstore.replicate.pull import pull
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.files import Files

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

FIELDS: dict[str, Any] = {"v": ws.Array("int64")}


def numbers(first: int, end: int) -> dict[str, Any]:
    return {"v": np.arange(first, end)}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the first ten rows of a remote, which has ten more in each of two further chunks."""
    with ws.RecordStore.create(tmp_path / "a", FIELDS) as store:
        store.extend(numbers(0, 10))
        store.push(tmp_path / "remote")
    ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
    for first in (10, 20):
        with ws.RecordStore.open(tmp_path / "a", "a") as store:
            store.extend(numbers(first, first + 10))
            store.push(tmp_path / "remote")
    return tmp_path / "b"


def content(copy: Path) -> dict[str, bytes]:
    """The files of a store, apart from its note of pushes and pulls."""
    return {path.name: path.read_bytes() for path in copy.glob("g0001/*")}


def values(copy: Path) -> list[int]:
    with ws.RecordStore.open(copy) as store:
        assert store.verify().ok
        found: list[int] = store["v"][:].tolist()
        return found


@pytest.mark.parametrize("is_there", [True, False])
def test_a_clone_may_be_where_a_link_leads_to(copy: Path, tmp_path: Path, is_there: bool) -> None:
    """It failed once all chunks were there: nothing can be renamed over a link."""
    place, link = tmp_path / "disk" / "place", tmp_path / "link"
    (place if is_there else place.parent).mkdir(parents=True)
    link.symlink_to(place)
    ws.RecordStore.clone(tmp_path / "remote", link).close()
    assert link.is_symlink()
    assert values(link) == values(place) == list(range(30))


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "begun"])
def test_a_writer_that_begins_during_the_download_is_not_overwritten(
    commits: bool, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, guard, before = BlockCache.fetch_chunk, threading.Lock(), {}
    with ws.RecordStore.open(copy, "a") as writer, ws.RecordStore.open(copy) as store:

        def fetch_beside(cache: BlockCache, *arguments: Any) -> None:
            with guard:
                if not before and commits:
                    writer.extend(numbers(100, 105))
                    writer.flush()
                elif not before:
                    writer._session.generation._writer = writer._session.generation.new_writer()
                before.update(before or content(copy))
            fetch(cache, *arguments)

        monkeypatch.setattr(BlockCache, "fetch_chunk", fetch_beside)
        with pytest.raises(Diverged, match="being written to"):
            store.pull(copy.with_name("remote"))
        assert content(copy) == before
        writer.extend(numbers(105, 110))
    assert values(copy) == [*range(10), *(range(100, 105) if commits else ()), *range(105, 110)]


def test_a_writer_that_begins_as_chunks_are_named_is_not_overwritten(copy: Path) -> None:
    """The first of two chunks has its name already, and gives it back."""

    class Beside(Files):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if target.suffix == ".arrow" and not writers:
                writers.append(ws.RecordStore.open(copy, "a"))
                writers[0]._session.generation._writer = writers[0]._session.generation.new_writer()

    writers: list[ws.RecordStore] = []
    with pytest.raises(Diverged):
        pull(copy, Remote(copy.with_name("remote")).open(), Beside())
    assert sorted(content(copy)) == ["000000.arrow", "000002.arrow", "log", "log.copy", "store.json.copy"]
    with writers[0] as writer:
        writer.extend(numbers(100, 105))
    assert values(copy) == [*range(10), *range(100, 105)]


@pytest.mark.parametrize("left", ["begun", "named"])
def test_chunks_that_dead_processes_left_are_replaced(left: str, copy: Path) -> None:
    """A writer that died before its first commit, and a pull that died before the log named its chunks."""
    file = copy / "g0001" / "000001.arrow"
    file.write_bytes(b"" if left == "begun" else (copy.with_name("a") / "g0001" / file.name).read_bytes())
    with ws.RecordStore.open(copy) as store:
        assert store.pull(copy.with_name("remote")).records == 20
    assert values(copy) == [*range(30)]
    assert not (copy / ".pull").exists()


def test_a_writer_whose_new_file_a_pull_has_taken_begins_another(copy: Path) -> None:
    """Between the creation of its chunk and the lock on it, it looks as if it were dead."""

    class Beside(Files):
        pulled = 0

        def lock(self, descriptor: int, *, wait: bool = True) -> bool:
            if not self.pulled and (copy / "g0001" / "000001.arrow").exists():
                self.pulled = 1
                self.pulled = pull(copy, Remote(copy.with_name("remote")).open(), Files()).records
            return super().lock(descriptor, wait=wait)

    files = Beside()
    with ws.RecordStore.open(copy, "a", files=files) as writer:
        writer.extend(numbers(100, 105))
    assert files.pulled == 20
    assert values(copy) == [*range(30), *range(100, 105)]


def test_blocks_of_another_chunk_with_the_same_number_and_size_are_fetched_again(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull fetches a generation and dies; the next one finds the generation after it."""
    remote = copy.with_name("remote")
    with ws.RecordStore.open(copy.with_name("a"), "a") as origin:
        origin.rebalance(progress=False)
        origin.push(remote)
        with monkeypatch.context() as patched:
            patched.setattr(pull_module, "_move", interrupted)
            with pytest.raises(InterruptedError):
                ws.RecordStore.clone(remote, copy)
        assert (copy / ".pull" / "000000.arrow").exists()
        origin.update(range(30), numbers(100, 130))
        origin.rebalance(progress=False)
        origin.push(remote)
    ws.RecordStore.clone(remote, copy).close()
    assert values(copy) == [*range(100, 130)]


def interrupted(*arguments: Any) -> bool:
    raise InterruptedError


@pytest.mark.forks
@pytest.mark.remotes
@pytest.mark.parametrize("fails", [False, True], ids=["pulled", "after a pull beside a writer"])
def test_the_footer_of_a_chunk_that_was_pulled_without_it_is_pulled(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_die(say: Callable[[Any], None]) -> None:
        store = ws.RecordStore.create(tmp_path / "a", FIELDS)
        store.extend(numbers(0, 10))
        store.flush()
        os._exit(0)

    well(in_child(write_and_die))
    with ws.RecordStore.open(tmp_path / "a") as store:
        store.push(tmp_path / "remote")
    ws.RecordStore.clone(tmp_path / "remote", tmp_path / "b").close()
    with ws.RecordStore.open(tmp_path / "a", "a") as store:
        assert len(seal_abandoned(store).sealed) == 1
        store.extend(numbers(10, 20))
        store.push(tmp_path / "remote")
    with ws.RecordStore.open(tmp_path / "b") as copy:
        assert copy["v"][:].tolist() == list(range(10))
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(pull_module, "is_at", lambda descriptor, path: path.name == "000000.arrow")
                with pytest.raises(Diverged):
                    copy.pull(tmp_path / "remote")
            assert copy["v"][:].tolist() == values(tmp_path / "b") == list(range(10))
        assert copy.pull(tmp_path / "remote").records == 10
        assert copy["v"][:].tolist() == list(range(20))
    assert values(tmp_path / "b") == list(range(20))
    assert content(tmp_path / "b") == content(tmp_path / "a")
