"""Compressed caches: smaller on the disk, the same bits back, damaged rows are misses still."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.errors import SchemaMismatch


def outputs(ids: Any) -> Any:
    numbers = torch.tensor(ids, dtype=torch.float32)[:, None]
    return {
        "y": numbers.repeat(1, 100),
        "half": numbers.repeat(1, 30).bfloat16(),
        "rows": [torch.full((number % 3, 50), number) for number in ids],
        "names": [{"name": f"{number} " * 20} for number in ids],
    }


def same(one: Any, other: Any) -> bool:
    rows = zip(one["rows"], other["rows"], strict=True)
    return (
        torch.equal(one["y"], other["y"])
        and torch.equal(one["half"].view(torch.int16), other["half"].view(torch.int16))
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in rows)
        and bool(one["names"] == other["names"])
    )


def opened(folder: Path, id: str, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(folder, id, lists="per_sample", async_write=False, **options)


@pytest.mark.parametrize("codec", ["zstd:1", "lz4", "deflate"])
def test_compressed_leaves_come_back_bit_for_bit(tmp_path: Path, codec: str) -> None:
    ids = list(range(400))
    sizes = []
    for name, options in (("plain", {}), ("small", {"codec": codec, "threads": 1})):
        with opened(tmp_path, name, **options) as cache:
            cache.put_batch(ids, outputs(ids))
            assert same(cache.get_batch(ids[:9])[0], outputs(ids[:9]))  # they wait
            cache.flush()
            sizes.append(sum(path.stat().st_size for path in cache.path.rglob("*.arrow")))
            found, missing = cache.get_batch([5, 900, 7])
            assert missing.tolist() == [1]
            assert same(found, outputs([5, 7]))
            found["y"][:] = 0
        with opened(tmp_path, name) as cache:  # the codec is the store's
            cache.put_batch([900], outputs([900]))
            for _ in range(3):
                assert same(cache.get_batch([900, *ids])[0], outputs([900, *ids]))
    assert sizes[1] < sizes[0] / 2
    with opened(tmp_path, "plain") as cache:
        assert cache.merge(tmp_path / "small").present == 401
    with opened(tmp_path, "new") as cache:
        assert cache.merge(tmp_path / "small").added == 401
        assert same(cache.get_batch(ids)[0], outputs(ids))


def test_damaged_compressed_rows_are_misses(tmp_path: Path) -> None:
    ids = list(range(40))
    with opened(tmp_path, "c", codec="zstd") as cache:
        cache.put_batch(ids, outputs(ids))
    (chunk,) = cache.path.rglob("*.arrow")
    data = bytearray(chunk.read_bytes())
    at = data.index(b"\x28\xb5\x2f\xfd", len(data) // 8)  # a zstd frame
    data[at : at + 8] = b"\xff" * 8
    chunk.write_bytes(data)
    with opened(tmp_path, "c") as cache:
        found, missing = cache.get_batch(ids)
        assert len(missing) == 1
        assert same(found, outputs([number for number in ids if number != missing[0]]))
        assert cache.stats().damaged == 1


def test_shapes_that_vary_and_options_that_cannot_be(tmp_path: Path) -> None:
    with opened(tmp_path, "c", codec="zstd") as cache:
        cache.put_batch([1], torch.ones(1, 3))
        cache.put_batch([2], torch.ones(1, 5))
        cache.flush()
        assert cache.get_batch([2])[0].shape == (1, 5)
        with pytest.raises(SchemaMismatch):
            cache.put_batch([3], torch.ones(1, 5, dtype=torch.float64))
    for options in ({"codec": "rar"}, {"threads": 0}):
        with pytest.raises((ValueError, TypeError)):
            opened(tmp_path, "other", **options)
    assert np.array_equal(opened(tmp_path, "c", read_only=True).get_batch([1])[0], np.ones((1, 3)))
