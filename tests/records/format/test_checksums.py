"""Checksums: xxh3-64 whichever way they are computed, and good in one place only."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from warmstore.records.format.checksums import (
    absent_checksums,
    batch_seeds,
    generation_seed,
    matrix_checksums,
    packed_checksums,
)

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("width", [*range(131), 300])
def test_many_at_once_are_what_xxhash_says_of_each(width: int) -> None:
    random = np.random.default_rng(width)
    rows = random.integers(0, 256, (50, width), np.uint8)
    if width:
        rows[0], rows[1] = 0, 255
    seeds = random.integers(0, 2**64, 50, np.uint64)
    seeds[:3] = [0, 2**64 - 1, 2**63]
    each = [xxhash.xxh3_64_intdigest(row.tobytes(), seed) for row, seed in zip(rows, seeds.tolist(), strict=True)]
    assert matrix_checksums(rows, seeds).tolist() == each
    assert packed_checksums(rows.reshape(-1), np.full(50, width), None, seeds).tolist() == each
    assert matrix_checksums(rows, 5).tolist() == [xxhash.xxh3_64_intdigest(row.tobytes(), 5) for row in rows]


@given(st.integers(0, 40_000), st.integers(1, 20), SEEDS)
def test_however_many_there_are(count: int, width: int, seed: int) -> None:
    rows = np.arange(count * width).astype(np.uint8).reshape(count, width)
    sums = matrix_checksums(rows, seed)
    for at in {0, 1, 1 << 14, count // 2, count - 1} & set(range(count)):
        assert int(sums[at]) == xxhash.xxh3_64_intdigest(rows[at].tobytes(), seed)


def test_rows_need_not_lie_side_by_side() -> None:
    rows = np.arange(600).astype(np.uint8).reshape(20, 30)
    assert matrix_checksums(rows[::2, 3:11], 1).tolist() == matrix_checksums(rows[::2, 3:11].copy(), 1).tolist()


def test_a_checksum_knows_bytes_shape_and_place() -> None:
    data, length = np.arange(6, dtype=np.uint8), np.array([6])
    wide, tall = np.array([[2, 3]]), np.array([[3, 2]])
    generations = [generation_seed(store, generation) for store in ("a", "b") for generation in (1, 2)]
    places = [0, 0, 1], [0, 64, 0]
    seeds = [seed for generation in generations for seed in batch_seeds(generation, *places).tolist()]
    sums = {int(packed_checksums(data, length, shape, seed)[0]) for shape in (None, wide, tall) for seed in seeds}
    sums |= {int(one) for seed in seeds for one in absent_checksums([0, 1], seed)}
    assert len(sums) == 5 * len(seeds)
    assert packed_checksums(data[:0], length - 6, None, 0) != packed_checksums(data, length, None, 0)


def test_a_shape_is_the_seed_of_its_bytes() -> None:
    shape = np.array([[2, 3]])
    seed = xxhash.xxh3_64_intdigest(shape.tobytes(), 9)
    data = np.frombuffer(b"abcdef", np.uint8)
    assert packed_checksums(data, [6], shape, 9).tolist() == [xxhash.xxh3_64_intdigest(b"abcdef", seed)]


@given(st.lists(st.binary(max_size=300), max_size=30), st.booleans(), SEEDS)
def test_values_of_any_lengths(values: list[bytes], have_shapes: bool, seed: int) -> None:
    shapes = np.array([[len(value), 1] for value in values], np.int64).reshape(len(values), 2) if have_shapes else None
    own = [seed] * len(values)
    if shapes is not None:
        own = [xxhash.xxh3_64_intdigest(shape.tobytes(), seed) for shape in shapes]
    data = np.frombuffer(b"".join(values), np.uint8)
    lengths = np.array([*map(len, values)], np.int64)
    each = [xxhash.xxh3_64_intdigest(value, one) for value, one in zip(values, own, strict=True)]
    assert packed_checksums(data, lengths, shapes, seed).tolist() == each
