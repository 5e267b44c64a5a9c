"""Stores opened at a remote: read by ranges, within a bound, by several processes, and never a wrong byte."""

import contextlib
import os
import pickle
import shutil
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from tests import warm
from tests.remote.proxy import FAULTS, Proxy
from tests.replicate.test_push_pull import at_s3, behind_proxy, each_request, make, same
from tests.slow import thinned, unforked

import warmstore as ws
from warmstore.errors import BadBudget, Damaged, NotAStore, ReadOnly, RemoteUnavailable
from warmstore.records.format.manifest import Manifest
from warmstore.remote.objects import Objects
from warmstore.replicate import remote_copy
from warmstore.replicate.block_cache import BlockCache
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.remote_copy import Remote, copy_folder
from warmstore.replicate.remote_diff import read_note, write_note
from warmstore.replicate.remote_snapshot import RemoteSnapshot
from warmstore.storage.block_source import BLOCK
from warmstore.storage.files import Files

__all__ = ["at_s3", "behind_proxy"]


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """The URL of a folder with a pushed store of 4 chunks, some 8 MB."""
    with ws.RecordStore.create(tmp_path / "a", {"n": ws.Array("int64"), "x": ws.Array("uint8", (2000,))}) as store:
        rng = np.random.default_rng(0)
        for first in range(0, 4000, 1000):
            x = rng.integers(0, 256, (1000, 2000), np.uint8)
            store.extend({"n": np.arange(first, first + 1000), "x": x})
            store.flush()
            store._session.generation.seal()
        store.push(str(tmp_path / "remote"))
    return f"file://{tmp_path}/remote"


def fetched(store: ws.RecordStore) -> int:
    return sum(pages.nbytes for pages in store._files._block_caches.values())  # type: ignore[attr-defined]


def test_reads_only_what_is_asked_for(remote: str, tmp_path: Path) -> None:
    with (
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store,
        ws.RecordStore.open(tmp_path / "a") as local,
    ):
        assert len(store) == 4000
        assert fetched(store) < 1_000_000
        index = [3999, 17, -300, 17]
        assert (store.gather(index)["x"] == local.gather(index)["x"]).all()
        assert fetched(store) < 2_000_000
        assert same_arrays(store, local)
        assert store.verify().ok
        assert (store.to_arrow()["x"].combine_chunks().to_numpy_ndarray() == local["x"][:]).all()
        with pytest.raises(ReadOnly):
            store.push(str(tmp_path / "elsewhere"))
    with pytest.raises(ReadOnly):
        ws.RecordStore.open(remote, "a")
    with pytest.raises(NotAStore):
        ws.RecordStore.open(f"file://{tmp_path}/nothing", cache_dir=tmp_path / "cache")


def same_arrays(one: ws.RecordStore, other: ws.RecordStore) -> bool:
    left, right = one.gather(slice(None)), other.gather(slice(None))
    return all((left[name] == right[name]).all() for name in left)


def test_stays_within_its_bound(remote: str, tmp_path: Path) -> None:
    with (
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache", cache_size="2MB") as store,
        ws.RecordStore.open(tmp_path / "a") as local,
    ):
        rng = np.random.default_rng(1)
        for _ in range(200):
            index = rng.integers(0, 4000, 8)
            assert (store["x"][index] == local["x"][index]).all()
            assert fetched(store) <= 2_000_000
        held = sum(path.stat().st_blocks * 512 for path in (tmp_path / "cache").rglob("*.arrow"))
        assert held <= 2_000_000
        with pytest.raises(BadBudget, match="cache_size"):
            store.gather(slice(None))


def test_making_room_costs_what_is_here_and_not_what_is_there(tmp_path: Path) -> None:
    chunks, data = {}, {}
    with Objects(tmp_path / "remote") as objects:
        for number in (0, 3000):  # as of a store of 3 TB
            data[number] = np.random.default_rng(number).bytes(50 * BLOCK)
            chunks[number], hashes = RemoteChunk.of(memoryview(data[number]))
            objects.put(chunks[number].object, data[number])
            objects.put(chunks[number].hashes_object, hashes)
        (tmp_path / "folder").mkdir()
        pages = BlockCache(tmp_path / "folder", chunks, objects, Files(), 40 * BLOCK)
        tracemalloc.start()
        try:
            for number in (0, 3000, 0):
                for first in (0, 20):
                    with pages.pin(PAGES * number + np.arange(first, first + 30)):
                        there = pages.path(number).read_bytes()[first * BLOCK : (first + 30) * BLOCK]
                        assert there == data[number][first * BLOCK : (first + 30) * BLOCK]
                assert pages.nbytes <= 40 * BLOCK
            assert tracemalloc.get_traced_memory()[1] < 4 * PAGES * 3001
        finally:
            tracemalloc.stop()


def test_views_outlive_what_is_evicted(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "a", {"b": ws.Bytes()}) as local:
        blobs = [np.random.default_rng(number).bytes(70_000) for number in range(60)]
        local.extend({"b": blobs})
        local.push(str(tmp_path / "remote"))
    with ws.RecordStore.open(f"file://{tmp_path}/remote", cache_dir=tmp_path / "c", cache_size="500KB") as store:
        kept = [store[number]["b"] for number in range(60)]
        assert [bytes(view) for view in kept] == blobs
        assert store.gather([1, 2], packed=True)["b"][0].tobytes() == blobs[1]


def test_the_next_run_finds_what_was_read(behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with make(tmp_path / "a", 2000, chunk_size="1GB") as local:
        local.push(behind_proxy)
    with ws.RecordStore.open(behind_proxy, cache_dir=tmp_path / "cache") as store:
        values = store["x"][5:9]
    s3_proxy.always = "cut"
    with ws.RecordStore.open(behind_proxy, cache_dir=tmp_path / "cache") as store:
        assert (store["x"][5:9] == values).all()
        with pytest.raises(RemoteUnavailable):
            store["x"][1500]
    with pytest.raises(RemoteUnavailable):
        ws.RecordStore.open(behind_proxy, cache_dir=tmp_path / "elsewhere")


def test_after_a_reboot_blocks_are_checked(remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        before = store["x"][:1000]
        pages = next(iter(store._files._block_caches.values()))  # type: ignore[attr-defined]
        first = pages.path(0)
    data = bytearray(first.read_bytes())
    data[500_000:500_100] = bytes(100)  # never reached the disk
    first.write_bytes(data)
    monkeypatch.setattr("warmstore.replicate.block_cache.boot_id", lambda: b"another start")
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        assert (store["x"][:1000] == before).all()
    assert first.read_bytes() != bytes(data)


def test_sees_what_is_pushed_later(remote: str, tmp_path: Path) -> None:
    with (
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store,
        ws.RecordStore.open(tmp_path / "a", "a") as local,
    ):
        more = pickle.loads(pickle.dumps(store))
        local.extend({"n": [4000], "x": np.ones((1, 2000), np.uint8)})
        local.push(str(tmp_path / "remote"))
        assert len(store) == 4000
        store.refresh()
        assert store[4000]["x"].all()
        local.delete(range(2000))
        local.rebalance()
        local.push(str(tmp_path / "remote"))
        store.refresh()
        more.refresh()
        assert same_arrays(store, local)
        assert same_arrays(more, local)
        more.close()


def test_another_process_copies_a_newer_generation_first(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = remote_copy.find_copy

    def find_copy(*arguments: Any, **options: Any) -> RemoteSnapshot:
        head = found(*arguments, **options)
        monkeypatch.setattr(remote_copy, "find_copy", found)
        with ws.RecordStore.open(tmp_path / "a", "a") as local:
            local.delete(range(2000))
            local.rebalance()
            local.push(str(tmp_path / "remote"))
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache").close()
        return head

    monkeypatch.setattr(remote_copy, "find_copy", find_copy)
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        assert len(store) == 2000


def test_generations_that_are_gone_take_no_room(tmp_path: Path) -> None:
    with make(tmp_path / "a", 100) as local:
        for _ in range(4):
            local.push(tmp_path / "remote")
            with ws.RecordStore.open((tmp_path / "remote").as_uri(), cache_dir=tmp_path / "cache") as store:
                assert same(store, local)
            local.delete([0])
            local.rebalance()
    assert len(list((tmp_path / "cache").glob("*/*/g[0-9]*"))) == 2  # the last, and the one that others may still read


def test_a_reader_of_a_generation_that_is_gone_is_told(tmp_path: Path) -> None:
    """It raised FileNotFoundError, of a temporary file."""
    with make(tmp_path / "a", 100) as local:
        local.push(tmp_path / "remote")
        url, cache = (tmp_path / "remote").as_uri(), tmp_path / "cache"
        with ws.RecordStore.open(url, cache_dir=cache) as store, ws.RecordStore.open(url, cache_dir=cache) as other:
            for _ in range(2):
                local.rebalance(progress=False)
                local.push(tmp_path / "remote")
                other.refresh()
            with pytest.raises(RemoteUnavailable, match=r"g0001 is gone.*refresh\(\)"):
                store.gather(slice(None))
            store.refresh()
            assert same(store, local)


def test_damage_of_a_copy_says_that_it_can_be_had_again(tmp_path: Path) -> None:
    with make(tmp_path / "a", 100) as local:
        local.push(tmp_path / "remote")
        url = (tmp_path / "remote").as_uri()
        with ws.RecordStore.open(url, cache_dir=tmp_path / "cache") as store:
            assert same(store, local)
        for path in (tmp_path / "cache").rglob("*.arrow"):
            data = bytearray(path.read_bytes())
            data[5000:-5000] = bytes(len(data) - 10_000)
            path.write_bytes(data)
        with ws.RecordStore.open(url, cache_dir=tmp_path / "cache") as store:
            with pytest.raises(Damaged, match="to fetch it from the remote again"):
                store.gather(slice(None))
            folder = store.path
        shutil.rmtree(folder)
        with ws.RecordStore.open(url, cache_dir=tmp_path / "cache") as store:
            assert same(store, local)


@pytest.mark.slow
def test_the_list_of_chunks_of_a_copy_is_written_again(remote: str, tmp_path: Path) -> None:
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        whole = store.gather([5, 3500])["x"]
    (path,) = (tmp_path / "cache").rglob("chunks.json")
    data = path.read_bytes()
    for damaged in (b"", b"[]", data[:50], data.replace(b'"2":', b'"7":'), data.replace(b"a", b"b")):
        path.write_bytes(damaged)
        with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
            assert (store.gather([5, 3500])["x"] == whole).all()
        assert path.read_bytes() == data


def test_remotes_at_two_endpoints_share_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the copy, nor the note of the last push or pull. The copy at the default endpoint keeps its old name."""
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    url = "s3://bucket/train"
    endpoints = ({}, {"endpoint": "https://staging"}, {"endpoint": "https://production"})
    remotes = [Remote(url, {**options, "region": "x", "skip_signature": True}) for options in endpoints]
    copies = {copy_folder(remote, tmp_path).name for remote in remotes}
    assert len(copies) == 3
    assert f"train-{xxhash.xxh3_64_hexdigest(url.encode())}" in copies
    head = RemoteSnapshot("heads/000001-a", 1, False, Manifest({}), b"", {})
    for number, remote in enumerate(remotes):
        with contextlib.closing(remote.open()) as objects:
            assert read_note(tmp_path, objects, Files()) == {}, number
            write_note(tmp_path, objects, head, Files())
            assert read_note(tmp_path, objects, Files())["head"] == "heads/000001-a 1 0"


@pytest.mark.slow
def test_threads_and_processes_share_a_copy(remote: str, tmp_path: Path) -> None:
    program = """if True:
        import sys
        import numpy as np
        import warmstore as ws
        rng = np.random.default_rng(int(sys.argv[3]))
        with ws.RecordStore.open(sys.argv[1], cache_dir=sys.argv[2], cache_size="1MB") as store:
            for _ in range(40):
                index = rng.integers(0, 4000, 4)
                assert (store.gather(index)["n"] == index).all()
                store["x"][index]  # checked against the rows' checksums
    """
    command = [sys.executable, "-c", program, remote, str(tmp_path / "cache")]
    others = [warm.popen([*command, str(number)]) for number in range(2)]
    wrong: list[Any] = []
    with (
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache", cache_size="1MB") as store,
        ws.RecordStore.open(tmp_path / "a") as local,
    ):

        def read(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(30):
                index = rng.integers(0, 4000, 4)
                if not (store["x"][index] == local["x"][index]).all():
                    wrong.append(index)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert [other.wait() for other in others] == [0, 0]


def test_forked_children_fetch_for_themselves(remote: str, tmp_path: Path) -> None:
    with (
        ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store,
        ws.RecordStore.open(tmp_path / "a") as local,
    ):
        store["x"][:10]
        children = []
        for seed in range(2):
            child = os.fork()
            if not child:
                index = np.random.default_rng(seed).permutation(4000)[:500]
                parts = [(store["x"][part] == local["x"][part]).all() for part in np.split(index, 10)]
                os._exit(0 if all(parts) else 1)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        before = fetched(store)
        for seed in range(2):  # all of it is here, for the parent too
            index = np.random.default_rng(seed).permutation(4000)[:500]
            assert (store["x"][index] == local["x"][index]).all()
        assert fetched(store) == before


@pytest.mark.parametrize("method", thinned(2, ["fork", unforked()]))
def test_workers_of_a_data_loader_fetch_for_themselves(method: str, remote: str, tmp_path: Path) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        store["n"][0]
        loader = torch_data.DataLoader(
            store, batch_size=100, sampler=list(range(3999, -1, -1)), num_workers=2, multiprocessing_context=method
        )
        seen = [int(number) for batch in loader for number in batch["n"]]
    assert seen == list(range(3999, -1, -1))


def test_a_forked_child_says_why_a_block_is_missing(remote: str, tmp_path: Path) -> None:
    with ws.RecordStore.open(remote, cache_dir=tmp_path / "cache") as store:
        store["x"][:10]
        for path in (tmp_path / "remote" / "chunks").iterdir():
            path.unlink()
        child = os.fork()
        if not child:
            try:
                store["x"][3500]
            except (Damaged, RemoteUnavailable):
                os._exit(0)
            except BaseException:
                os._exit(2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("fault", thinned(6, FAULTS[:-1]))
def test_every_fault_at_every_request(fault: str, behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    with make(tmp_path / "a", 100) as local:
        local.push(behind_proxy)

        def read(number: int) -> None:
            cache = tmp_path / f"cache{number}"
            for _ in range(2):
                try:
                    with ws.RecordStore.open(behind_proxy, cache_dir=cache) as store:
                        assert same(store, local)
                        return
                except (Damaged, RemoteUnavailable, NotAStore):
                    continue
            raise AssertionError

        assert each_request(s3_proxy, fault, read) >= 4


def test_requests_are_few(behind_proxy: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    fields = {"x": ws.Array("uint8", (65_536,))}
    with ws.RecordStore.create(tmp_path / "a", fields) as local:
        local.extend({"x": np.random.default_rng(0).integers(0, 256, (200, 65_536), np.uint8)})
        local.push(behind_proxy)
    with ws.RecordStore.open(behind_proxy, cache_dir=tmp_path / "cache") as store:
        s3_proxy.reset()
        store["x"][[3, 4, 5, 7, 100]]
        assert len(s3_proxy.requests) == 2 + 1  # two ranges, and the hashes unless they came at opening
        for position in range(10, 90):
            store["x"][position]
        assert len(s3_proxy.requests) < 20  # read ahead
        s3_proxy.reset()
        store["x"][::3]
        assert len(s3_proxy.requests) <= 4  # the rest of it as a whole


def test_names_of_chunks() -> None:
    data = memoryview(os.urandom(200_000))
    chunk, hashes = RemoteChunk.of(data)
    assert chunk.blocks == 4
    assert chunk.hashes(hashes) is not None
    assert chunk.hashes(hashes[::-1]) is None
    assert chunk.hashes(None) is None
    assert RemoteChunk.of(data[:-1])[0].name != chunk.name
    for name, size in (("../x", 1), ("g" * 32, 1), (chunk.name, -1), (chunk.name, 1 << 40), (None, 1)):
        with pytest.raises(ValueError, match="is no"):
            RemoteChunk(name, size)  # type: ignore[arg-type]
    assert BlockCache is not None
