"""F5: writing is asynchronous and bounded, by batch, and loses nothing."""

import contextlib
import errno
import gc
import itertools
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.failing_lines import fails_at

import warmstore as ws
from warmstore.features.keyed import cache_session
from warmstore.features.outputs.leaves import Leaf
from warmstore.features.write_queue import Block, WriteBehindQueue
from warmstore.records import local_store
from warmstore.records.index.sample_keys import as_keys
from warmstore.storage.files import Files


def block(first, count=4):
    keys = as_keys(range(first, first + count))
    return Block(keys, (Leaf("output", np.zeros((count, 25))),), 200 * count)


class Sink:
    """Takes blocks for good; can be held back, or made to fail."""

    def __init__(self):
        self.samples = 0
        self.commits = 0
        self.error = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def commit(self, blocks):
        self.entered.set()
        self.gate.wait()
        self.commits += 1
        if self.error is not None:
            raise self.error
        self.samples += sum(map(len, blocks))


@pytest.fixture
def sink():
    return Sink()


def test_put_does_not_wait_for_the_disk(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10_000, background=True)
    sink.gate.clear()
    for at in range(10):
        blocks.put(block(4 * at))
    assert sink.samples == 0
    assert blocks.nbytes == 8_000
    sink.gate.set()
    blocks.flush(sink.commit)
    assert (sink.samples, blocks.nbytes, len(blocks)) == (40, 0, 0)
    blocks.stop()


def test_put_waits_where_max_pending_would_be_exceeded(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=2_000, background=True)
    sink.gate.clear()
    most = []

    def fill():
        for at in range(100):
            blocks.put(block(4 * at))
            most.append(blocks.nbytes)
        sink.entered.set()

    thread = threading.Thread(target=fill)
    thread.start()
    sink.entered.wait()  # the third block finds no room and has the first two written
    assert blocks.nbytes == 1_600
    sink.gate.set()
    thread.join()
    assert max(most) <= 2_000
    blocks.flush(sink.commit)
    assert sink.samples == 400
    blocks.stop()


def test_a_block_larger_than_max_pending_is_taken_alone(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=100, background=True)
    for at in range(5):
        blocks.put(block(4 * at))
        assert blocks.nbytes <= 800
    blocks.flush(sink.commit)
    assert sink.samples == 20
    blocks.stop()


def test_max_pending_bounds_writing_in_the_foreground_too(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=2_000, background=False)
    for at in range(50):
        blocks.put(block(4 * at))
        assert blocks.nbytes <= 2_000
    assert sink.samples > 0


def test_flush_every_counts_samples_and_commits_batches(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=12, limit=10**9, background=False)
    commits = []
    for at in range(9):
        blocks.put(block(4 * at))
        commits.append(sink.commits)
    assert commits == [0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("method", ["put", "_drain", "_forget"])
def test_an_error_at_any_line_gives_no_key_the_values_of_another(method, sink):
    for line in itertools.count():
        blocks = WriteBehindQueue(sink.commit, flush_every=10**6, limit=10**9, background=False)
        accepted = [block(4 * at, 1 + at) for at in range(4)]

        def find(blocks=blocks, accepted=accepted):
            for keys in (each.keys for each in accepted):
                for at, (found, row) in blocks.find(keys).items():
                    assert found.keys.packed[row] == keys.packed[at]

        blocks.put(accepted[0])

        def call(blocks=blocks, accepted=accepted):
            blocks.put(accepted[1])
            if method != "put":
                blocks.flush(sink.commit)

        if not fails_at(getattr(WriteBehindQueue, method), line, call):
            break
        find()
        blocks.put(accepted[2])
        find()
        blocks.flush(sink.commit)
        assert (len(blocks), blocks.nbytes) == (0, 0)
        blocks.put(accepted[3])
        assert len(blocks.find(accepted[3].keys)) == 4
        find()
    assert line > 3


def test_after_an_interrupted_stop_blocks_are_written_in_the_background(sink, monkeypatch):
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10**9, background=True)
    sink.gate.clear()
    blocks.put(block(0))
    sink.entered.wait()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", lambda thread: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            blocks.stop()
    before = [thread for thread in threading.enumerate() if thread.name == "warmstore-writer"]
    sink.gate.set()
    blocks.flush(sink.commit)
    sink.entered.clear()
    blocks.put(block(4))
    assert sink.entered.wait(60)
    blocks.stop()
    for thread in before:
        thread.join()
    assert (sink.samples, len(blocks)) == (8, 0)


def test_flush_waits_for_the_writer(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10**9, background=True)
    sink.gate.clear()
    blocks.put(block(0))
    sink.entered.wait()
    written = []
    thread = threading.Thread(target=lambda: (blocks.flush(sink.commit), written.append(sink.samples)))
    thread.start()
    assert written == []  # whatever the thread has come to, the writer holds what it must wait for
    sink.gate.set()
    thread.join()
    assert written == [4]
    blocks.stop()


@pytest.mark.parametrize("background", [False, True])
def test_a_queue_that_is_being_closed_takes_no_blocks(sink, background):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=10**9, background=background)
    blocks.put(block(0))
    with blocks.closing():
        with pytest.raises(ws.Closed):
            blocks.put(block(4))
        blocks.flush(sink.commit)
    assert (sink.samples, len(blocks)) == (4, 0)
    with pytest.raises(ws.Closed):
        blocks.put(block(8))


def test_a_queue_whose_closing_failed_takes_blocks_again(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=10**9, background=True)
    with pytest.raises(OSError, match="full"), blocks.closing():
        raise OSError(errno.ENOSPC, "full")
    blocks.put(block(0))
    with blocks.closing():
        blocks.flush(sink.commit)
        with pytest.raises(ws.Closed), blocks.closing():  # another thread's, which comes too late
            raise ws.Closed("too late")
        with pytest.raises(ws.Closed):
            blocks.put(block(4))
    assert (sink.samples, len(blocks)) == (4, 0)


def test_a_thread_that_waits_for_room_is_told_of_the_closing(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=10_000, limit=1_000, background=True)
    sink.gate.clear()
    blocks.put(block(0))
    raised = []

    def put():
        with pytest.raises(ws.Closed) as error:
            blocks.put(block(4))
        raised.append(error)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    sink.entered.wait()  # there is no room, and the first block is being written
    with blocks.closing():
        thread.join(60)
        sink.gate.set()
        blocks.stop()
        blocks.flush(sink.commit)
    assert len(raised) == 1
    assert (sink.samples, len(blocks)) == (4, 0)


def test_failed_background_write_reaches_the_caller_and_keeps_all(sink):
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10**9, background=True)
    sink.error = OSError(errno.ENOSPC, "full")
    firsts = range(0, 40_000, 4)
    with pytest.raises(OSError, match="full"):
        list(map(blocks.put, map(block, firsts)))
    count = len(blocks)
    sink.error = None
    blocks.flush(sink.commit)
    assert sink.samples == count
    blocks.raise_error()
    blocks.stop()


@pytest.mark.parametrize("background", [False, True])
def test_what_never_fits_is_given_up_and_told(sink, background):
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10**9, background=background)
    sink.error = ws.StaleCache("another process")
    sink.gate.clear()
    if background:
        blocks.put(block(0))
        sink.entered.wait()
        sink.gate.set()
        with pytest.raises(ws.StaleCache):
            blocks.flush(sink.commit)
    else:
        sink.gate.set()
        with pytest.raises(ws.StaleCache):
            blocks.put(block(0))
    blocks.stop()
    sink.error = None
    assert len(blocks) == 0
    assert blocks.nbytes == 0


@pytest.mark.parametrize("background", [False, True])
def test_a_block_that_is_refused_is_dropped_alone(sink, background):
    blocks = WriteBehindQueue(sink.commit, flush_every=12, limit=10**9, background=background)
    gate = threading.Event()

    def commit(given, commit=sink.commit):
        gate.wait()
        for each in given:
            with blocks.refusing():
                if each.keys.packed[0] == block(4).keys.packed[0]:
                    raise ws.UnsupportedType("never fits")
                commit([each])

    blocks._commit = lambda: commit
    blocks.put(block(0))
    blocks.put(block(4))
    if background:
        blocks.put(block(8))
        gate.set()
        with pytest.raises(ws.UnsupportedType, match="never fits"):
            blocks.flush(commit)
    else:
        gate.set()
        with pytest.raises(ws.UnsupportedType, match="never fits"):
            blocks.put(block(8))
    assert (sink.samples, len(blocks), blocks.nbytes) == (8, 0, 0)
    blocks.put(block(4))
    blocks.put(block(12))
    sink.error = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        blocks.flush(commit)
    assert len(blocks) == 8
    sink.error = None
    with pytest.raises(ws.UnsupportedType, match="never fits"):
        blocks.flush(commit)
    assert (sink.samples, len(blocks)) == (12, 0)
    blocks.flush(commit)
    blocks.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_newer_block_of_the_same_key_stays_found(sink, fails):
    """While the older one is committed, after it was, and where that failed."""
    blocks = WriteBehindQueue(sink.commit, flush_every=4, limit=10**9, background=True)
    first, second = block(0), block(2)
    keys = as_keys([3, 1, 9, 5])
    both = {0: (second, 1), 1: (first, 1), 3: (second, 3)}
    sink.gate.clear()
    sink.error = OSError("no room") if fails else None
    blocks.put(first)
    sink.entered.wait()
    assert blocks.find(keys) == {0: (first, 3), 1: (first, 1)}
    with blocks._changed.lock:  # not a commit's turn until it is in the queue
        sink.gate.set()
        blocks._flush_every = 10**9
        blocks.put(second)
        assert blocks.find(keys) == both
    while blocks._error is None and len(blocks) > 4:
        time.sleep(0.001)
    assert blocks.find(keys) == (both if fails else {0: (second, 1), 3: (second, 3)})
    if fails:
        sink.error = None
        with pytest.raises(OSError, match="no room"):
            blocks.raise_error()
    blocks.flush(sink.commit)
    assert not len(blocks)
    assert not blocks.find(keys)
    blocks.stop()


class FullDisk(Files):
    """Refuses to write more than there is room."""

    def __init__(self):
        self.full = False

    def write(self, descriptor, buffers, offset):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, buffers, offset)

    def allocate(self, descriptor, offset, length):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(descriptor, offset, length)


class TestRefusedSamples:
    """One bad sample once kept all others from the disk, or took them with it."""

    def test_texts_that_are_not_unicode(self, tmp_path):
        with ws.FeatureCache(tmp_path, "id", lists="per_sample", flush_every=2) as cache:
            cache.put_batch([0, 1], [{"name": "a"}, {"name": "b"}])
            with pytest.raises(ws.UnsupportedType, match=r"name holds a str per sample; .*valid Unicode"):
                cache.put_batch([2], [{"name": "file\udce9.jpg"}])  # of os.fsdecode
            assert 2 not in cache
            cache.put_batch([3, 4], [{"name": "c"}, {"name": "\U0001f600"}])
        with ws.FeatureCache(tmp_path, "id", read_only=True) as found:
            assert sorted(found) == [0, 1, 3, 4]
            assert found[4] == {"name": "\U0001f600"}

    def test_records_that_are_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(cache_session, "_LARGEST", 1_000)
        outputs = {
            "stacked": lambda size, count: torch.ones(count, size),
            "items": lambda size, count: [torch.ones(size)] * count,
            "two leaves": lambda size, count: [(torch.ones(at), torch.ones(size - at)) for at in range(1, count + 1)],
        }
        for name, make in outputs.items():
            with ws.FeatureCache(tmp_path, name, variable=True, lists="per_sample") as cache:
                cache.put_batch([0, 1], make(250, 2))
                with pytest.raises(ws.SchemaMismatch, match="sample of 1,004 bytes is too large"):
                    cache.put_batch([2, 3], make(251, 2))
                assert len(cache) == 2

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_what_the_store_refuses(self, tmp_path, monkeypatch, asynchronous):
        monkeypatch.setattr(local_store, "LARGEST_RECORD", 1_000)
        cache = ws.FeatureCache(tmp_path, "id", variable=True, async_write=asynchronous, lists="structure")
        for number in range(10):
            cache.put_batch([number], torch.full((1, 1_000 if number == 4 else 4), float(number)))
        with pytest.raises(ws.SchemaMismatch, match="too large"):
            cache.close()
        assert 4 not in cache
        cache.close()
        with ws.FeatureCache(tmp_path, "id", read_only=True) as found:
            assert sorted(found) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
            assert found[9].tolist() == [9] * 4


class TestFullDisk:
    """Rows were once dropped on a full disk, and the failed background write swallowed."""

    @pytest.mark.parametrize("started", [False, True])
    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_nothing_computed_is_lost(self, tmp_path, counting, asynchronous, started):
        disk = FullDisk()
        cache = ws.FeatureCache(tmp_path, "id", flush_every=4, async_write=asynchronous, files=disk)
        module = ws.CachedModule(counting(lambda x: x * 2), cache)
        if started:
            module(torch.arange(4.0), cache_ids=range(4))
            cache.flush()
        disk.full = True
        done = 4 * started
        failed = []
        while len(failed) < 3 and done < 2_000:
            ids = range(done, done + 4)
            try:
                module(torch.arange(done, done + 4.0), cache_ids=ids)
            except OSError as error:
                failed.append(error.errno)
            done += 4
        assert failed == [errno.ENOSPC] * 3
        with pytest.raises(OSError, match="No space"):
            cache.flush()
        computed = sum(module.rows)
        assert len(cache) == computed > 4 * started
        disk.full = False
        cache.flush()
        assert len(cache) == computed
        assert torch.equal(module(torch.arange(float(done)), cache_ids=range(done)), torch.arange(float(done)) * 2)
        cache.close()
        with ws.FeatureCache(tmp_path, "id") as cache:
            values, missing = cache.get_batch(range(done))
            assert len(missing) == 0
            assert torch.equal(values, torch.arange(float(done)) * 2)

    def test_close_says_so_and_can_be_tried_again(self, tmp_path):
        disk = FullDisk()
        cache = ws.FeatureCache(tmp_path, "id", files=disk)
        cache.put_batch([0], torch.ones(1))
        cache.flush()
        cache.put_batch([1, 2], torch.ones(2))
        disk.full = True
        with pytest.raises(ws.WriteFailed):
            cache.close()
        disk.full = False
        cache.put_batch([3], torch.ones(1))
        cache.close()
        assert len(ws.FeatureCache(tmp_path, "id")) == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_samples_put_while_another_thread_closes_are_stored_or_refused(tmp_path, asynchronous, monkeypatch):
    """The thread has found the cache open, and puts its samples after the last flush."""
    cache = ws.FeatureCache(tmp_path, "id", async_write=asynchronous)
    cache.put_batch([0], torch.ones(1))
    entered, closed, refused = threading.Event(), threading.Event(), []
    put = WriteBehindQueue.put

    def stopped(blocks, block):
        entered.set()
        closed.wait()
        put(blocks, block)

    def work():
        with pytest.raises(ws.Closed, match="closed"):
            cache.put_batch([1], torch.ones(1))
        refused.append(1)

    monkeypatch.setattr(WriteBehindQueue, "put", stopped)
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    cache.close()
    closed.set()
    thread.join()
    assert refused == [1]
    with ws.FeatureCache(tmp_path, "id", read_only=True) as found:
        assert list(found) == [0]


class TestForgotten:
    """Rows were once lost when the cache was not closed."""

    def test_deleted(self, tmp_path, linear):
        module = ws.CachedModule(linear, ws.FeatureCache(tmp_path, "id"))
        module(torch.rand(3, 3), cache_ids=[1, 2, 3])
        del module
        assert len(ws.FeatureCache(tmp_path, "id")) == 3

    @pytest.mark.parametrize("options", [{}, {"max_size": "1GB"}])
    def test_collected_in_a_cycle(self, tmp_path, options, caplog):
        """The files it works with are open until it has written what waits."""
        for first in range(0, 9, 3):
            cache = ws.FeatureCache(tmp_path, "id", **options)
            cache.put_batch([first, first + 1], torch.rand(2, 3))
            cache.flush()
            cache.get_batch([first])
            cache.put_batch([first + 2], torch.rand(1, 3))
            cache.itself = cache
            del cache
            gc.collect()
            with ws.FeatureCache(tmp_path, "id") as found:
                assert len(found) == first + 3
            assert not caplog.records

    def test_its_store_is_collected_first(self, tmp_path):
        """The garbage collector calls `__del__` of the objects in a cycle in any order."""
        cache = ws.FeatureCache(tmp_path, "id")
        cache.put_batch([1, 2], torch.rand(2, 3))
        cache.flush()
        cache.put_batch([3], torch.rand(1, 3))
        cache._session.version.reader.store.__del__()
        del cache
        assert len(ws.FeatureCache(tmp_path, "id")) == 3

    def test_not_closed_by_the_thread_that_commits(self, tmp_path):
        """What the garbage collector closed there in the middle of a commit would wait for itself."""
        forgotten, collected, writers = threading.Event(), threading.Event(), []

        class Collecting(Files):
            def sync(self, descriptor):
                if threading.current_thread().name == "warmstore-writer" and not writers:
                    writers.append(threading.current_thread())
                    forgotten.wait()
                    gc.collect()
                    collected.set()
                super().sync(descriptor)

        cache = ws.FeatureCache(tmp_path, "id", flush_every=3, files=Collecting())
        cache.put_batch([1, 2, 3], torch.rand(3, 3))
        cache.itself = cache
        del cache
        forgotten.set()
        assert collected.wait(60)
        while writers[0].is_alive():  # until it is through with the commit, there is nothing to collect
            gc.collect()
            writers[0].join(0.01)
        assert len(ws.FeatureCache(tmp_path, "id")) == 3

    def test_no_thread_is_left(self, tmp_path):
        for _ in range(20):
            cache = ws.FeatureCache(tmp_path, "id", flush_every=1)
            cache.put_batch([1], torch.rand(1, 3))
            del cache
        gc.collect()
        writers = [thread for thread in threading.enumerate() if thread.name == "warmstore-writer"]
        for thread in writers:
            thread.join()


def test_a_lookup_beside_a_commit_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a ValueError of NumPy's: the outputs are not those of the store that was opened since they were found."""
    with ws.FeatureCache(tmp_path, "c") as cache:
        cache.put_batch([0], np.zeros((1, 2)))
        cache.put_batch([1], np.zeros((1, 5)))
        with ws.FeatureCache(tmp_path, "c") as other:
            other.put_batch([2], np.zeros((1, 2)))
        blocks = cache._session.blocks
        find = blocks.find

        def find_and_commit(keys: Any) -> Any:
            found = find(keys)
            with contextlib.suppress(ws.SchemaMismatch):
                cache.flush()
            return found

        monkeypatch.setattr(blocks, "find", find_and_commit)
        with pytest.raises(ws.SchemaMismatch):
            cache.get_batch([0, 1, 2])
        monkeypatch.undo()
        assert cache.get_batch([0, 1, 2])[1].tolist() == [0, 1]
