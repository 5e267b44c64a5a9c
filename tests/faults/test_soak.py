"""A soak of some processes for seconds, and its model: `make torture` runs it for a million operations."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.soak import Soak, campaign
from tests.faults.soak_model import (
    CACHED_WIDTH,
    Wrong,
    appended,
    are_alive,
    columns_of,
    deleted,
    judge,
    judge_all,
    judge_cached,
    updated,
    values_of,
)
from tests.faults.soak_watch import Watch, growth, mappings_of
from tests.slow import either, unforked

SLOTS = np.arange(6)
FIRST = appended(np.zeros(6, np.int64))


def test_a_soak() -> None:
    found = campaign(
        Soak(either(1500, 30_000), writers=2, editors=1, readers=1, threads=2, start=unforked(), rest=either(0.2, 12))
    )
    assert not found.failures, "\n".join(found.failures)
    assert found.operations >= 1500
    assert found.in_the_end["uss"]
    assert len(found.rests) == 2


def test_states_rise() -> None:
    states = [FIRST, updated(FIRST), deleted(updated(FIRST)), appended(deleted(updated(FIRST)))]
    assert all((before < after).all() for before, after in itertools.pairwise(states))
    assert [bool(are_alive(each).all()) for each in (0 * FIRST, *states)] == [False, True, True, False, True]


def test_rows_of_the_model_are_right() -> None:
    judge_all(columns_of(SLOTS, FIRST), FIRST, FIRST)
    judge_all(columns_of(SLOTS, updated(FIRST)), FIRST, updated(FIRST))
    judge_all(columns_of(SLOTS[:0], FIRST[:0]), 0 * FIRST, FIRST)  # begun, and not acknowledged
    judge_all(columns_of(SLOTS[:0], FIRST[:0]), FIRST, deleted(FIRST))  # a delete has begun
    judge_all(columns_of(SLOTS[:0], FIRST[:0]), FIRST, appended(FIRST))  # deleted and appended since
    judge_cached(SLOTS, values_of(SLOTS, 0 * SLOTS + 1, CACHED_WIDTH)[1:], np.array([0]))


def changed(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    columns = columns_of(SLOTS, FIRST)
    return {**columns, name: change(columns[name])}


@pytest.mark.parametrize(
    ("columns", "known", "begun", "what"),
    [
        (
            changed("values", lambda values: values + (np.arange(8) == 3)),
            FIRST,
            FIRST,
            "values of 6 of 6 rows are wrong",
        ),
        (changed("blob", lambda blobs: [*blobs[1:], blobs[0]]), FIRST, FIRST, "bytes are not"),
        (columns_of(SLOTS, FIRST), updated(FIRST), updated(FIRST), "6 of 6 rows are older"),
        (columns_of(SLOTS, FIRST), deleted(FIRST), deleted(FIRST), "6 of 6 rows are older"),
        (columns_of(SLOTS, updated(FIRST)), FIRST, FIRST, "6 of 6 rows are newer"),
        (columns_of(SLOTS, deleted(FIRST)), FIRST, deleted(FIRST), "have no state of a record"),
        (columns_of(SLOTS + 1, FIRST), FIRST, FIRST, "slots 1 to 6 were read"),
        (columns_of(SLOTS[1:], FIRST[1:]), FIRST, updated(FIRST), "1 acknowledged rows are lost: slot 0"),
        (columns_of(np.append(SLOTS, 2), np.append(FIRST, FIRST[:1])), FIRST, FIRST, r"slots \[2\] were read more"),
    ],
)
def test_wrong_rows_are_seen(columns: dict[str, Any], known: Any, begun: Any, what: str) -> None:
    with pytest.raises(Wrong, match=what):
        judge_all(columns, known, begun)
    if "slot 0" not in what and "more" not in what:
        with pytest.raises(Wrong, match=what):
            judge(columns, known, begun)


def test_wrong_samples_are_seen() -> None:
    values = values_of(SLOTS, 0 * SLOTS + 1, CACHED_WIDTH)
    with pytest.raises(Wrong, match="other values"):
        judge_cached(SLOTS, values, np.array([0]))
    with pytest.raises(Wrong, match="other values"):
        judge_cached(SLOTS, values[::-1], np.array([], np.int64))


def test_the_means_around_a_number_of_operations(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "watched", tmp_path, {})
    watch.samples = [{"operations": at, "uss": at % 300} for at in range(0, 2000, 100)]
    assert watch.around(1000)["uss"] == (0 + 100 + 200) / 3
    assert watch.around(5000) == {}


def test_growth() -> None:
    before = {"uss": 100.0, "descriptors": 50.0, "threads": 20.0, "mappings": 9.0, "bytes": 1e6, "files": 5.0}
    assert growth(before, {**before, "uss": 105, "threads": 29, "files": 1}) == []
    assert growth(before, {**before, "uss": 106, "files": 6}) == ["uss grew from 100 to 106", "files grew from 5 to 6"]
    assert growth({"uss": 100.0}, {**before, "uss": 106, "files": 6}) == ["uss grew from 100 to 106"]


MAPS = """\
55e0a0000000-55e0a0001000 r-xp 00000000 fe:00 1 /usr/bin/python
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000041000 rw-p 00000000 00:00 0
7f0000041000-7f0000042000 ---p 00000000 00:00 0
7f0000042000-7f0000082000 rw-p 00000000 00:00 0
7f0000082000-7f0000083000 r--s 00000000 fe:00 2 /data/000001.arrow
7f0000084000-7f0000085000 ---p 00000000 00:00 0
7f0000086000-7f0000087000 rw-p 00000000 00:00 0
"""


def test_stacks_are_no_mappings_that_are_watched() -> None:
    assert mappings_of(MAPS) == 3
