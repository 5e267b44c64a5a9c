"""Rows are packed first-fit, and say of every place which sample it is from."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import warmstore as ws
from warmstore.loading.collate import Collation
from warmstore.loading.first_fit import first_fit


def packed(samples: list[Any], way: ws.PackRows, **others: list[Any]) -> Any:
    columns = {"ids": samples, **others}
    rows = [{name: column[at] for name, column in columns.items()} for at in range(len(samples))]
    dataset = ws.Dataset(rows, collate=dict.fromkeys(columns, way))
    return dataset.__getitems__(np.arange(len(samples))).batch


def test_a_batch_as_rows() -> None:
    samples = [np.arange(size) + 10 * at for at, size in enumerate([3, 4, 1, 0, 2, 1])]
    ids = packed(samples, ws.PackRows(5, pad=-1))["ids"]
    assert ids["values"].dtype == np.int64
    assert ids["values"].tolist() == [[0, 1, 2, 20, 50], [10, 11, 12, 13, -1], [40, 41, -1, -1, -1]]
    assert ids["segments"].tolist() == [[1, 1, 1, 2, 3], [1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert ids["positions"].tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 1, 0, 0, 0]]
    assert ids["samples"].tolist() == [[0, 0, 0, 2, 5], [1, 1, 1, 1, -1], [4, 4, -1, -1, -1]]
    assert {ids[name].dtype for name in ("segments", "positions", "samples")} == {np.dtype(np.int32)}


LENGTHS = st.integers(1, 40).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n, max_size=n))


@given(LENGTHS, st.integers(9, 20), st.integers(0, 3))
def test_every_value_is_found_again(lengths: list[int], length: int, more: int) -> None:
    samples = [np.stack([np.full(size, at + 1), np.arange(size)], 1) for at, size in enumerate(lengths)]
    placed = first_fit(lengths, len(lengths), length)
    needed = max((row for row, size in zip(placed, lengths, strict=True) if size), default=-1) + 1
    for rows in (None, max(needed, 1) + more):
        ids = packed(samples, ws.PackRows(length, rows))["ids"]
        count = needed if rows is None else rows
        assert ids["values"].shape == (count, length, 2)
        assert {ids[name].shape for name in ("segments", "positions", "samples")} == {(count, length)}
        used = ids["segments"] > 0
        assert (ids["values"][..., 0] == ids["samples"] + 1).all()
        assert (ids["values"][..., 1] == ids["positions"])[used].all()
        assert used.sum() == sum(lengths)
        assert not ids["positions"][~used].any()
        for at, size in enumerate(lengths):
            row, place = np.nonzero(ids["samples"] == at)
            assert set(row) == ({placed[at]} if size else set())
            assert ids["positions"][row, place].tolist() == list(range(size))
            assert not size or place.tolist() == list(range(place[0], place[0] + size))
        for row in range(count):
            # Samples stand in their order, numbered from 1 on without gaps, and padding comes last.
            own = ids["samples"][row][used[row]]
            assert own.tolist() == sorted(own.tolist())
            _, numbers = np.unique(own, return_inverse=True)
            assert ids["segments"][row].tolist() == [*(numbers + 1), *[0] * (length - len(own))]


def test_fields_of_equal_lengths_have_one_layout() -> None:
    sizes = [4, 7, 2, 6, 1, 3]
    ids = [np.full(size, at) for at, size in enumerate(sizes)]
    labels = [np.full(size, at / 2, np.float32) for at, size in enumerate(sizes)]
    batch = packed(ids, ws.PackRows(8, 4), labels=labels)
    for name in ("segments", "positions", "samples"):
        assert np.array_equal(batch["ids"][name], batch["labels"][name])
    assert batch["labels"]["values"].dtype == np.float32
    assert np.array_equal(batch["ids"]["values"] / 2, batch["labels"]["values"])


def test_a_store_and_a_list_are_packed_alike(store: ws.RecordStore) -> None:
    listed = [store[at] for at in range(len(store))]
    found = []
    for source in (store, listed):
        for collate in ({"points": ws.PackRows(6, 3)}, ws.PackRows(8, 2)):
            fields = ["points"] if source is store else None
            samples = source if source is store else [{"points": one["points"]} for one in listed]
            dataset = ws.Dataset(samples, fields=fields, collate=collate)
            found.append(dataset.__getitems__(np.array([3, 0, 5, 4])).batch["points"])
    for one, other in zip(found[:2], found[2:], strict=True):
        assert one.keys() == other.keys() == {"values", "segments", "positions", "samples"}
        for name, values in one.items():
            assert np.array_equal(values, other[name])
    assert found[0]["values"].shape == (3, 6, 2)
    assert found[0]["values"][0, :, 0].tolist() == [3, 3, 3, 0, 0, 0]


def test_nothing_but_empty_values() -> None:
    ids = packed([np.zeros((0, 2)), np.zeros((0, 2))], ws.PackRows(4))["ids"]
    assert ids["values"].shape == (0, 4, 2)
    assert ids["samples"].shape == (0, 4)
    ids = packed([np.zeros(0), np.zeros(0)], ws.PackRows(4, 2, pad=5))["ids"]
    assert ids["values"].tolist() == [[5] * 4] * 2
    assert (ids["samples"] == -1).all()


def test_it_goes_to_torch(store: ws.RecordStore) -> None:
    batch = next(iter(ws.Loader(store, 4, collate={"points": ws.PackRows(4, rows=2)}, to="torch", workers=0)))
    assert batch["points"]["segments"].dtype == torch.int32
    assert batch["points"]["samples"].tolist() == [[1, 2, 2, -1], [3, 3, 3, -1]]


def test_what_does_not_fit() -> None:
    samples = [np.zeros(3), np.zeros(5), np.zeros(4)]
    with pytest.raises(ws.SchemaMismatch, match="value 1 of ids has length 5, more than the 4 of a row"):
        packed(samples, ws.PackRows(4))
    message = (
        r"3 values of ids, 12 long together, do not fit into 2 rows of 6: no row has room for value 2, of length 4.*"
        r"ws.RowBudget\(2, 6, lengths\)"
    )
    with pytest.raises(ws.SchemaMismatch, match=message):
        packed(samples, ws.PackRows(6, rows=2))
    with pytest.raises(ws.SchemaMismatch, match="x does not vary in length"):
        Collation.of({"x": ws.PackRows(6)})({"x": 3})


@pytest.mark.parametrize("value", [0, -1, 2.0, True, 2**40])
def test_refuses(value: Any) -> None:
    with pytest.raises(ValueError, match="length of PackRows must be an integer from 1"):
        ws.PackRows(value)
    with pytest.raises(ValueError, match="rows of PackRows must be an integer from 1"):
        ws.PackRows(4, value)
