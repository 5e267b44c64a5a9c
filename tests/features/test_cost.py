"""F4 and F15: what a flush, a lookup and an open cache cost, counted in calls, pages and bytes and not in seconds."""

import contextlib
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.storage import registry
from warmstore.storage.files import Files

PAGE = 4096


class Counting(Files):
    """Counts the bytes that are written to files."""

    written = 0

    def write(self, descriptor, buffers, offset):
        self.written += sum(len(memoryview(buffer).cast("B")) for buffer in buffers)
        return super().write(descriptor, buffers, offset)


def pages_of(folder):
    return {
        (path.name, at // PAGE): hash(data[at : at + PAGE])
        for path in folder.glob("keys-*")
        for data in [path.read_bytes()]
        for at in range(0, len(data), PAGE)
    }


def key_of(kind, at):
    return at if kind is int else f"sample {at}"


@pytest.mark.parametrize("kind", [int, str])
def test_a_flush_touches_what_it_adds(tmp_path, kind):
    """The whole index was once rewritten at every flush."""
    written, touched = [], []
    for name, before in (("empty", 64), ("full", 60_000)):
        files = Counting()
        with ws.FeatureCache(tmp_path, name, async_write=False, flush_every=10**9, files=files) as cache:
            cache.put_batch([key_of(kind, at) for at in range(before)], torch.zeros(before, 4))
            cache.flush()
            pages, so_far = pages_of(cache.path), files.written
            cache.put_batch([key_of(kind, 10**5 + at) for at in range(64)], torch.zeros(64, 4))
            cache.flush()
            written.append(files.written - so_far)
            touched.append(sum(pages.get(page) != now for page, now in pages_of(cache.path).items() if any_bytes(page)))
    assert written[1] < 2 * written[0]
    assert touched[1] <= 64 * 4, touched  # a page or two for each key, where its part of the table grew


def any_bytes(page):
    return page[0].endswith((".index", ".direct"))


@contextlib.contextmanager
def counted_calls():
    """A list that gets the number of Python and C calls of the block."""
    calls: list[int] = []
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_SWEPT", 0)  # now and then an operation would go through all that other tests made
        sys.setprofile(see)
        try:
            yield calls
        finally:
            sys.setprofile(None)
            calls.append(count)


def test_no_python_object_per_value(tmp_path):
    """Tensors once went through Python lists: as many calls for values of 8 numbers as of 8192."""
    counts = []
    for width in (8, 8192):
        with ws.FeatureCache(tmp_path, f"width {width}", async_write=False) as cache:
            values = torch.rand(64, width)
            with counted_calls() as calls:
                cache.put_batch(range(64), values)
                cache.flush()
                got = cache.get_batch(range(64))[0]
            assert torch.equal(got, values)
            counts += calls
    assert counts[1] < 1.5 * counts[0]


def test_no_list_of_values(tmp_path):
    """One call makes a list of all values, at eight times their bytes: memory tells."""
    with ws.FeatureCache(tmp_path, "id", async_write=False) as cache:
        cache.put_batch(range(64, 128), torch.rand(64, 8192))
        cache.flush()
        values = torch.rand(64, 8192)
        tracemalloc.start()
        try:
            cache.put_batch(range(64), values)
            cache.flush()
            got = cache.get_batch(range(64))[0]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert torch.equal(got, values)
    assert peak < 4 * values.nbytes, peak


def test_hits_are_found_and_read_by_the_batch(tmp_path):
    """As many calls for a batch of 2048 as for one of 64."""
    with ws.FeatureCache(tmp_path, "id") as cache:
        cache.put_batch(np.arange(8192), torch.rand(8192, 8))  # no epoch ends meanwhile, which would be recorded
        cache.flush()
        counts = []
        for size in (64, 2048):
            ids = np.random.default_rng(0).permutation(4096)[:size]
            cache.get_batch(ids)
            with counted_calls() as calls:
                cache.get_batch(ids)
            counts += calls
    assert counts[1] < 1.5 * counts[0]


MANY = """
import sys
import numpy as np
import warmstore as ws

def private():
    rows = dict(line.split(":") for line in open("/proc/self/smaps_rollup").read().splitlines()[1:])
    return sum(1024 * int(rows[name].split()[0]) for name in ("Private_Dirty", "Anonymous"))

def look_up(name, keys):
    cache = ws.FeatureCache(sys.argv[1], name, read_only=True)
    assert len(cache.get_batch(keys)[1]) == 0
    return cache

few = look_up("few", np.arange(256) * 997)
before = private()
many = look_up("many", np.arange(256) * 997 * 1900)
print(private() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
def test_an_open_cache_has_no_memory_of_its_own_per_key(run_script, tmp_path):
    """Half a million keys: the 128 bits of each alone would be 8 MB, a dict 50."""
    count = 500_000
    for name, keys in (("few", np.arange(256) * 997), ("many", np.arange(count) * 997)):
        with ws.FeatureCache(tmp_path, name, async_write=False, flush_every=10**9) as cache:
            cache.put_batch(keys, torch.zeros(len(keys), 1, dtype=torch.int8))
    os.sync()  # pages that are not yet on the disk count as private, and the short run of tests leaves out the waits
    assert int(run_script(MANY, fresh=True)) < 4 * count
