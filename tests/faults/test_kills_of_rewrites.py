"""Rebalances and edits killed at every operation: all of it or nothing, and everybody can go on.

What a kill leaves lying about (half a generation, a draft of store.json) is in nobody's way, and the next rebalance
removes it.
"""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, check, columns, in_child, record
from tests.faults.seam import Counting, Killing
from tests.slow import thinned

import warmstore as ws

pytestmark = pytest.mark.forks

CHUNK = 5000
BEFORE = [0, 6, 2, 3, 4, 5]
"""The records of the store that is there before, after edits of its own."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "s"
    with ws.RecordStore.create(path, FIELDS) as store:
        store.extend(columns(range(7)))
        store.delete(1)
    return path


@pytest.fixture
def path(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "s"))


def rebalance(path: Path, files: Counting | Killing, say: Callable[[Any], None] = lambda _: None) -> None:
    """Rebalance with a pending row, which is committed first."""
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK, files=files)
    store.append(record(7))
    store.rebalance()
    say("done")
    store.close()


def edit(path: Path, files: Counting | Killing, say: Callable[[Any], None] = lambda _: None) -> None:
    """Three edits, two of them with a pending row before."""
    store = ws.RecordStore.open(path, "a", files=files)
    store.append(record(7))
    store.update([1, 0, 1], columns([8, 9, 10]))
    say(2)
    store.append(record(11))
    store.delete([0, 2, 7])
    say(4)
    store.update(-1, record(12))
    say(5)
    store.close()


EDITED = [
    BEFORE,
    [*BEFORE, 7],
    [9, 10, 2, 3, 4, 5, 7],
    [9, 10, 2, 3, 4, 5, 7, 11],
    [7, 10, 5, 3, 4],
    [7, 10, 5, 3, 12],
]
"""What is committed after each commit of `edit`."""

_ENTRY = ["write", "write", "sync"]  # in the copy and in the log
_NEXT = ["write", "sync", *_ENTRY]  # another batch, or the footer
_FIRST = ["create", "sync_folder", *_NEXT]  # a chunk and its first batch
_LIST = ["write", "write", "sync"]  # in the copy and in `numbers`
_UPDATE = ["write", "sync", *_LIST, "write", "write", *_ENTRY]  # a batch, its positions, and two entries at once
_NAME = ["create", "write", "sync", "rename", "sync_folder"]  # store.json, or its copy
OPERATIONS = {
    rebalance: [
        *_FIRST,
        *("make_folder", "create", "sync", "create", "sync", "sync_folder", *_FIRST, *_NEXT, "sync_folder"),
        *(*_ENTRY, *_NAME, *_NAME, "remove_folder"),
    ],
    edit: [*_FIRST, *_UPDATE, *_NEXT, *_LIST, *_ENTRY, *_UPDATE, *_NEXT],
}


def moments(operations: list[str]) -> list[tuple[int, str]]:
    halved = ("before", "middle", "after")
    return [
        (at, moment)
        for at, name in enumerate(operations)
        for moment in (halved if name in ("write", "remove_folder") else ("before", "after"))
    ]


def some(moments: list[tuple[int, str]]) -> list[Any]:
    """Every sixth in the short run."""
    return [
        pytest.param(*moment, marks=() if not number % 6 else pytest.mark.slow) for number, moment in enumerate(moments)
    ]


@pytest.mark.parametrize("work", [rebalance, edit])
def test_the_scenario_has_these_operations(path: Path, work: Callable[[Path, Counting], None]) -> None:
    counting = Counting()
    work(path, counting)
    assert counting.seen == OPERATIONS[work]


def leftovers(path: Path) -> list[str]:
    """Everything in a store's folder but what belongs to its present generation."""
    with ws.RecordStore.open(path) as store:
        belongs = {"store.json", "edit.lock", store._manifest.generation_folder}
    return sorted(one.name for one in path.iterdir() if one.name not in belongs)


def go_on(numbers: list[int], *opened: ws.RecordStore) -> None:
    """Assert that those who have the store open and those who open it now can read, append, edit and rebalance."""
    path = opened[0].path
    numbers = list(numbers)
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK)
    everybody = [store, ws.RecordStore.open(path), *opened]

    def look() -> None:
        for one in everybody:
            one.refresh()
            check(one, numbers)
            assert one.verify().ok

    look()
    store.append(record(20))
    store.update(0, record(21))
    store.delete(1)
    numbers = [21, 20, *numbers[2:]]
    look()
    store.rebalance()
    assert not leftovers(path)
    look()
    for writer in [one for one in everybody if one.mode == "a"]:
        writer.append(record(22))
        writer.flush()
        numbers.append(22)
    look()
    for one in everybody:
        one.close()
    with ws.RecordStore.open(path) as again:
        check(again, numbers)


@pytest.mark.parametrize(("at", "moment"), thinned(24, some(moments(OPERATIONS[rebalance]))))
def test_a_rebalance_killed_at_any_operation(path: Path, at: int, moment: str) -> None:
    reader = ws.RecordStore.open(path)
    ended = in_child(lambda say: rebalance(path, Killing(at, moment), say))
    assert ended.signal == signal.SIGKILL, ended.error
    assert not ended.said
    check(reader, BEFORE)
    left = leftovers(path)
    assert len([name for name in left if name.startswith("g")]) <= 1
    assert len([name for name in left if name.startswith("store.json.")]) <= 1
    assert len(left) <= 2
    committed = at > 4 or (at, moment) == (4, "after")
    go_on([*BEFORE, 7] if committed else BEFORE, reader)


@pytest.mark.parametrize(("at", "moment"), thinned(24, some(moments(OPERATIONS[rebalance]))))
def test_a_writer_with_pending_rows_beside_a_killed_rebalance(path: Path, at: int, moment: str) -> None:
    writer = ws.RecordStore.open(path, "a", chunk_size=CHUNK)
    writer.append(record(13))
    writer.flush()
    writer.append(record(14))
    ended = in_child(lambda say: rebalance(path, Killing(at, moment), say))
    assert ended.signal == signal.SIGKILL, ended.error
    check(writer, [*BEFORE, 13, 14])
    committed = at > 4 or (at, moment) == (4, "after")
    numbers = [*BEFORE, 13, *([7] if committed else []), 14]
    writer.flush()
    check(writer, numbers)
    go_on(numbers, writer)


@pytest.mark.parametrize(("at", "moment"), thinned(24, some(moments(OPERATIONS[edit]))))
def test_edits_killed_at_any_operation(path: Path, at: int, moment: str) -> None:
    reader = ws.RecordStore.open(path)
    ended = in_child(lambda say: edit(path, Killing(at, moment), say))
    assert ended.signal == signal.SIGKILL, ended.error
    check(reader, BEFORE)
    with ws.RecordStore.open(path) as store:  # which sees what is in the copy alone, and the next writer rolls forward
        numbers = store["number"][:].tolist()
    done = max(ended.said, default=0)
    assert EDITED.index(numbers) in range(done, done + 3)
    reader.refresh()
    assert EDITED.index(reader["number"][:].tolist()) in range(done, done + 3)
    assert not leftovers(path)
    go_on(numbers, reader)
