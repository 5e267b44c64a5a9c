"""A store appears when it is complete: failed, killed and foreign drafts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, small_batches

import warmstore as ws
from warmstore.converting import conversion, conversion_draft
from warmstore.converting.conversion_draft import ConversionDraft, cut_of, draft_of
from warmstore.storage.files import Files


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


def lines(path: Path, count: int, last: str = "") -> Path:
    path.write_text("".join(json.dumps({"x": n}) + "\n" for n in range(count)) + last)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut(folder: Path, size: int) -> Path:
    """A tar of 60 samples of which only so many bytes are there."""
    from tests.converting.formats.test_webdataset import write

    write(folder / "whole.tar", [(f"{n:02d}.cls", b"%d" % n) for n in range(60)])
    whole = (folder / "whole.tar").read_bytes()
    (folder / "whole.tar").unlink()
    (folder / "x.tar").write_bytes(whole[:size] if size else whole)
    return folder / "x.tar"


def test_a_failed_conversion_can_be_called_again(tmp_path: Path) -> None:
    source = cut(tmp_path, 40_000)
    for _ in range(2):
        with pytest.raises(ws.BadSource, match=r"x\.tar"):
            ws.convert(source, tmp_path / "store")
        assert names(tmp_path) == [".store.converting", "x.tar"]
    with ws.RecordStore.open(draft_of(tmp_path / "store")) as draft:
        assert 0 < len(draft) < 60
    with ws.convert(cut(tmp_path, 0), tmp_path / "store", fields=["cls"]) as store:
        holds(store, {"cls": np.arange(60)})
    assert names(tmp_path) == ["store", "x.tar"]


def test_nothing_is_left_where_nothing_was_converted(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ws.BadSource):
        ws.convert(lines(tmp_path / "x.jsonl", 3, "{"), tmp_path / "store")
    assert names(tmp_path) == ["store", "x.jsonl"]
    with ws.convert(lines(tmp_path / "x.jsonl", 3), tmp_path / "store") as store:  # into the empty folder
        holds(store, {"x": np.arange(3)})


@pytest.mark.parametrize("named", [True, False])
def test_a_draft_that_is_complete_only_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if named:
        lines(tmp_path / "x.jsonl", 30)

    def source() -> Any:
        return tmp_path / "x.jsonl" if named else ({"x": n} for n in range(30))

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("warmstore.storage.files.Files.rename", _renaming_but_to(tmp_path / "store", killed))
        with pytest.raises(Killed):
            ws.convert(source(), tmp_path / "store")
    draft = draft_of(tmp_path / "store")
    with ws.RecordStore.open(draft) as store:
        identity = store._manifest.id
        assert store.metadata["converted"]["complete"]
    with ws.convert(source(), tmp_path / "store") as store:
        holds(store, {"x": np.arange(30)})
        assert store._manifest.id == identity
    assert not draft.exists()


def test_a_complete_draft_of_other_files_is_begun_anew(tmp_path: Path) -> None:
    with ws.convert(lines(tmp_path / "x.jsonl", 30), tmp_path / "store"):
        (tmp_path / "store").rename(draft_of(tmp_path / "store"))
    with ws.convert(lines(tmp_path / "x.jsonl", 40), tmp_path / "store") as store:
        holds(store, {"x": np.arange(40)})
    assert names(tmp_path) == ["store", "x.jsonl"]


def _renaming_but_to(target: Path, killed: Any) -> Any:
    from warmstore.storage.files import Files

    plain = Files.rename

    def rename(self: Files, source: Path, to: Path) -> None:
        if to == target:
            killed()
        plain(self, source, to)

    return rename


def test_a_draft_that_lost_parts_is_begun_anew(tmp_path: Path) -> None:
    def broken() -> Any:
        yield from ({"x": n} for n in range(50))
        raise ZeroDivisionError

    draft = draft_of(tmp_path / "store")
    damages: list[Any] = [
        lambda: (draft / "store.json").write_text("damaged"),
        lambda: [path.unlink() for path in draft.glob("g0001/*")],
        lambda: [path.write_bytes(path.read_bytes()[:2000] + bytes(900)) for path in draft.glob("g0001/*.arrow")],
        lambda: conversion_draft.remove(draft),
        lambda: cut_of(draft).mkdir(),
    ]
    for number, damage in enumerate(damages):
        with pytest.raises(ZeroDivisionError):
            ws.convert(broken(), tmp_path / "store")
        damage()
        with ws.convert(({"x": n} for n in range(60)), tmp_path / "store") as store:
            holds(store, {"x": np.arange(60)})
        (tmp_path / "store").rename(tmp_path / f"{number}")
        assert names(tmp_path) == [str(at) for at in range(number + 1)]


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of 200 lines, of which more than 150 are in the draft, in several chunks."""

    def stop(store: ws.RecordStore, written: int) -> None:
        if written > 150:
            raise KeyboardInterrupt

    source = lines(tmp_path / "x.jsonl", 200)
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_check_alone", stop)
        with pytest.raises(KeyboardInterrupt):
            ws.convert(source, tmp_path / "store", chunk_size=4096)
    assert len(list(draft_of(tmp_path / "store").glob("g0001/*.arrow"))) > 1
    return source


def _is_whole(source: Path) -> None:
    with ws.convert(source, source.parent / "store", chunk_size=4096) as store:
        holds(store, {"x": np.arange(200)})
        assert store.verify(progress=False).ok
    assert names(source.parent) == ["store", "x.jsonl"]


@pytest.mark.parametrize("which", [0, -1])
def test_a_draft_without_one_of_its_chunks_is_begun_anew(begun: Path, which: int) -> None:
    sorted(draft_of(begun.parent / "store").glob("g0001/*.arrow"))[which].unlink()
    _is_whole(begun)


@pytest.mark.parametrize("number", range(5))
def test_a_removal_that_was_broken_off_leaves_no_draft(
    begun: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def remove_folder(self: Files, folder: Path) -> None:
        for path in sorted(path for path in folder.rglob("*") if path.is_file())[:number]:
            path.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Files, "remove_folder", remove_folder)
        with pytest.raises(KeyboardInterrupt):
            ws.convert(begun, begun.parent / "store", fields=["x"])
    assert not draft_of(begun.parent / "store").exists()
    _is_whole(begun)


def test_what_is_in_the_way_is_kept(tmp_path: Path) -> None:
    draft = draft_of(tmp_path / "store")
    draft.mkdir()
    (draft / "file").touch()
    with pytest.raises(ws.StoreExists, match="is no draft of a conversion"):
        ws.convert([{"x": 1}], tmp_path / "store")
    (draft / "file").unlink()
    draft.rmdir()
    ws.RecordStore.create(draft, {"x": ws.Text()}).close()
    with pytest.raises(ws.StoreExists, match="is no draft of a conversion"):
        ws.convert([{"x": 1}], tmp_path / "store")
    assert names(tmp_path) == [".store.converting"]


def test_a_store_that_took_the_name_meanwhile_is_kept(tmp_path: Path) -> None:
    def records() -> Any:
        yield {"x": 1}
        ws.RecordStore.create(tmp_path / "store", {"y": ws.Text()}).close()

    with pytest.raises(ws.StoreExists, match="created by another process"):
        ws.convert(records(), tmp_path / "store")
    with ws.RecordStore.open(tmp_path / "store") as store:
        assert list(store.fields) == ["y"]


def test_a_half_converted_store_of_before_is_finished_in_place(tmp_path: Path) -> None:
    def broken() -> Any:
        yield from ({"x": n} for n in range(50))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ws.convert(broken(), tmp_path / "store")
    draft_of(tmp_path / "store").rename(tmp_path / "store")
    with pytest.raises(ws.StoreExists, match="made from something else"):
        ws.convert(({"x": -n} for n in range(60)), tmp_path / "store")
    with ws.convert(({"x": n} for n in range(60)), tmp_path / "store") as store:
        holds(store, {"x": np.arange(60)})
        assert store.metadata["converted"]["complete"]
    assert names(tmp_path) == ["store"]
    assert ConversionDraft(tmp_path, tmp_path).is_draft is False
