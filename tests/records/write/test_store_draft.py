"""A new store appears whole: errors and kills leave nothing at its path, and the next try succeeds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import ReadOnly, StoreExists
from warmstore.records.write.store_draft import drafted
from warmstore.storage.files import Files

FILES = Files()


def fill(folder: Path) -> None:
    with ws.RecordStore.create(folder, {"x": ws.Array("int64")}) as store:
        store.append({"x": 7})


def test_it_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s"
    with drafted(path, FILES) as draft:
        fill(draft)
        assert not path.exists()
    assert ws.RecordStore.open(path)[0] == {"x": 7}
    assert [one.name for one in path.parent.iterdir()] == ["s"]


WAYS: dict[str, Callable[[Path], Any]] = {
    "create": fill,
    "filter": lambda path: _some(path.with_name("all")).filter(path, [0], progress=False).close(),
    "convert": lambda path: ws.convert({"x": np.array([7])}, path).close(),
}


def _some(folder: Path) -> ws.RecordStore:
    fill(folder)
    return ws.RecordStore.open(folder)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_path_may_be_a_link_to_another_disk(tmp_path: Path, way: str, is_there: bool) -> None:
    """Nothing can be renamed over a link: a conversion failed at its end."""
    place, path = tmp_path / "disk" / "place", tmp_path / "link"
    place.parent.mkdir()
    if is_there:
        place.mkdir()
    path.symlink_to(place)
    WAYS[way](path)
    assert path.is_symlink()
    for folder in (path, place):
        assert ws.RecordStore.open(folder)[0] == {"x": 7}
    assert [one.name for one in place.parent.iterdir()] == ["place"]
    with pytest.raises(StoreExists):
        fill(path)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def stop() -> None:
        with drafted(tmp_path / "s", FILES) as draft:
            fill(draft)
            raise error

    with pytest.raises(error):
        stop()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    (tmp_path / "empty").mkdir()
    for name, message in (("store", "holds a store already"), ("file", "is a file"), ("full", "is not empty")):
        with pytest.raises(StoreExists, match=message), drafted(tmp_path / name, FILES):
            pytest.fail("the block ran")
    with pytest.raises(ReadOnly, match="push it there"), drafted("s3://bucket/s", FILES):
        pytest.fail("the block ran")
    with drafted(tmp_path / "empty", FILES) as draft:
        fill(draft)
    assert len(ws.RecordStore.open(tmp_path / "empty")) == 1


def test_of_two_the_first_one_stays(tmp_path: Path) -> None:
    def make_both() -> None:
        with drafted(tmp_path / "s", FILES) as draft:
            fill(draft)
            fill(tmp_path / "s")

    with pytest.raises(StoreExists):
        make_both()
    assert len(ws.RecordStore.open(tmp_path / "s")) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


def test_drafts_of_the_dead_are_removed_and_others_stay(tmp_path: Path) -> None:
    for name in (".s.0123abcd.draft", ".s.b.0123abcd.draft", ".s.x.draft", ".t.0123abcd.draft"):
        (tmp_path / name / "s").mkdir(parents=True)
    with drafted(tmp_path / "s", FILES) as first:
        fill(first)
        with drafted(tmp_path / "s", FILES) as second:  # the first one is held
            fill(second)
            assert first.exists()
        with pytest.raises(StoreExists), drafted(tmp_path / "s", FILES):
            pytest.fail("the block ran")
        second = tmp_path / "s"
        second.rename(tmp_path / "other")
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        *(".s.b.0123abcd.draft", ".s.x.draft", ".t.0123abcd.draft"),
        *("other", "s"),
    ]


class Removing(Files):
    """Another process takes the draft for dead, before it is held."""

    def __init__(self, between: str) -> None:
        self.between = between

    def open(self, path: Path, **options: Any) -> int:
        if path.name.endswith(".draft") and self.between:
            when, self.between = self.between, ""
            if when == "making and opening":
                path.rmdir()
                return super().open(path, **options)
            descriptor = super().open(path, **options)
            path.rmdir()
            return descriptor
        return super().open(path, **options)


@pytest.mark.parametrize("between", ["making and opening", "opening and locking"])
def test_a_draft_that_was_taken_for_dead_is_made_again(tmp_path: Path, between: str) -> None:
    with drafted(tmp_path / "s", Removing(between)) as draft:
        assert draft.parent.exists()
        fill(draft)
    assert len(ws.RecordStore.open(tmp_path / "s")) == 1
