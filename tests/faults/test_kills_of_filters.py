"""A filter killed at every operation: nothing at its path or all of it, and the same filter succeeds afterwards."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, check, columns, in_child
from tests.faults.seam import Counting, Killing, Refusing
from tests.slow import either

import warmstore as ws
from warmstore.errors import StoreExists

pytestmark = pytest.mark.forks

KEPT = [0, 2, 4, 6]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with ws.RecordStore.create(tmp_path / "source", FIELDS) as store:
        store.extend(columns(range(7)))
    return tmp_path / "source"


def keep(source: Path, files: Any, say: Callable[[Any], None] = lambda _: None) -> None:
    with ws.RecordStore.open(source, files=files) as store:
        store.filter(source.parent / "kept", slice(None, None, 2)).close(seal=False)
    say("done")


def operations(source: Path) -> list[str]:
    counting = Counting()
    keep(source, counting)
    return counting.seen


def test_a_filter_killed_at_any_operation(tmp_path: Path, source: Path) -> None:
    count = len(operations(source))
    assert count > 20
    path = source.parent / "kept"
    with ws.RecordStore.open(path) as whole:
        check(whole, KEPT)
    for at in range(0, count, either(4, 1)):
        for moment in ("before", "middle", "after"):
            if path.exists():
                with ws.RecordStore.open(path) as whole:
                    check(whole, KEPT)
                path.rename(tmp_path / f"before-{at}-{moment}")
            ended = in_child(lambda say, at=at, moment=moment: keep(source, Killing(at, moment), say))
            assert ended.signal == signal.SIGKILL, ended
            if path.exists():
                with pytest.raises(StoreExists):
                    keep(source, Counting())
            else:
                keep(source, Counting())
            with ws.RecordStore.open(path) as kept:
                check(kept, KEPT)
                assert kept.verify().ok
    drafts = [one.name for one in tmp_path.iterdir() if one.name.endswith(".draft")]
    assert len(drafts) <= 1  # of the last one, if that was killed behind the rename


def test_a_filter_refused_at_any_operation_leaves_nothing(source: Path) -> None:
    path = source.parent / "kept"
    names = operations(source)
    for at in range(len(names)):
        if path.exists():
            path.rename(source.parent / f"before-{at}")
        refusing = Refusing()
        refusing.at = at
        try:
            keep(source, refusing)
        except OSError:
            if path.exists():  # refused behind the rename
                assert names.index("rename", names.index("sync_folder") + 1) < at
        if not path.exists():
            keep(source, Counting())
        with ws.RecordStore.open(path) as kept:
            check(kept, KEPT)
