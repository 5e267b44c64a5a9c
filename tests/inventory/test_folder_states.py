"""Folders of every kind are found, by the registry and by walking, and their states are those that their kinds tell."""

import errno
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.inventory.making import compiled, disk_plan, features, functions, pipeline, states, store

import warmstore as ws
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import NotAStore, StoreExists
from warmstore.features.cache_inspection import clear, read_state
from warmstore.inventory.discovery import find
from warmstore.inventory.removal import plan_removals
from warmstore.inventory.verification import verify
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.registry import registered


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry and default places that nothing else uses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WARMSTORE_CACHE_DIR", raising=False)


def kinds(*folders: Path) -> dict[str, str]:
    return {state.path.name: state.kind for state in states(*folders) if "/dev/shm" not in str(state.path)}


def test_every_kind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    store(tmp_path / "deep" / "er" / "store")
    features(tmp_path / "caches", "a/b")
    pipeline(tmp_path / "plans")
    compiled(tmp_path / "compiled")
    (tmp_path / "notes.txt").touch()
    (version,) = (tmp_path / "plans" / "warmstore-samples").glob("1-raw-*/")
    results = functions(tmp_path / "results")
    everything = {
        "store": "store",
        results.name: "functions", "a%2Fb": "features", version.name: "pipeline", "compiled": "compiled",
    }  # fmt: skip
    assert kinds(tmp_path) == everything
    opened = {name: kind for name, kind in everything.items() if kind != "compiled"}  # the session writes it down
    assert kinds() == opened
    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(tmp_path / "compiled"))
    assert kinds() == everything


def test_the_states_are_those_of_the_kinds(tmp_path: Path) -> None:
    path = features(tmp_path / "caches", "net")
    (state,) = states(path)
    known = read_state(path)
    assert (
        (state.entries, state.hits, state.misses) == (known.entries, known.usage.hits, known.usage.misses) == (4, 4, 4)
    )
    assert not state.is_data
    assert not state.in_use
    assert state.used >= known.written > 0
    (state,) = states(store(tmp_path / "store"))
    assert (state.entries, state.hits, state.is_data) == (10, None, True)
    (state,) = states(compiled(tmp_path / "compiled"))
    assert (state.entries, state.hits, state.misses, state.is_data) == (3, 2, 0, False)
    (state,) = states(functions(tmp_path / "results"))
    assert (state.entries, state.hits, state.misses, state.is_data) == (2, 1, 2, False)
    pipe = pipeline(tmp_path / "plans")
    (state,) = states(tmp_path / "plans")
    assert (state.entries, state.in_use, state.is_data) == (30, False, False)
    with pipe.loader(disk_plan(pipe, tmp_path / "plans"), 8, workers=0):
        (state,) = states(tmp_path / "plans")
        assert state.in_use


def test_a_size_is_what_du_counts(tmp_path: Path) -> None:
    for path in (store(tmp_path / "store"), features(tmp_path / "caches", "net"), compiled(tmp_path / "compiled")):
        with open(path / "hole", "wb") as file:
            file.truncate(1 << 30)  # takes nothing
        (state,) = states(path)
        said = subprocess.run(["du", "--block-size=1", "-s", path], capture_output=True, text=True, check=True).stdout
        assert state.nbytes == int(said.split()[0]) < 1 << 24


def test_outputs_of_unknown_origin_are_data(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "put") as cache:
        cache.put_batch([1], np.ones((1, 3)))
    (state,) = states(tmp_path / "put")
    assert (state.kind, state.is_data) == ("features", True)


def test_what_is_damaged_is_listed_with_its_problem(tmp_path: Path) -> None:
    path = store(tmp_path / "store")
    (path / "store.json").write_bytes(b"{")
    (state,) = states(tmp_path)
    assert "not readable" in state.problem
    assert state.nbytes > 0


def test_a_version_of_a_pipeline_that_is_named_is_no_store(tmp_path: Path) -> None:
    for by in (2, 3):
        pipeline(tmp_path, by).close()
    one, other = states(tmp_path)
    assert states(one.path) == [one]
    assert states(other.path, one.path.parent, one.path) == [one, other]
    assert not one.is_data
    assert verify(one).ok


def test_drafts_and_links_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".s.0123abcd.draft").mkdir()
    store(tmp_path / ".s.0123abcd.draft" / "s")
    store(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    assert [folder.path for folder in find([tmp_path])] == [tmp_path / "s"]
    assert [folder.path for folder in find([tmp_path, tmp_path / "s", tmp_path / "link"])] == [tmp_path / "s"]


def test_folders_that_are_gone_are_forgotten_and_those_named_must_exist(tmp_path: Path) -> None:
    path = features(tmp_path / "caches", "net")
    assert path in {folder.path for folder in find()}
    path.rename(tmp_path / "moved")
    assert path not in {folder.path for folder in find()}
    assert not registered()
    with pytest.raises(NotAStore, match="caches/net is not a folder"):
        find([path])


def test_a_registered_folder_that_was_moved_behind_a_link_is_listed_once(tmp_path: Path) -> None:
    path = features(tmp_path / "old" / "caches", "net")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "old").symlink_to(tmp_path / "new")
    features(tmp_path / "new" / "caches", "net")
    assert len(registered()) == 2
    (found,) = [folder for folder in find() if folder.path.name == "net"]
    assert found.path == tmp_path / "new" / "caches" / "net" != path
    assert found.opened == max(entry.opened for entry in registered())


def test_a_default_place_that_cannot_be_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = features(tmp_path / "caches", "net")
    closed, stat = tmp_path / "closed" / "compiled", os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(path, int) and Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **options)

    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(closed))
    monkeypatch.setattr(os, "stat", refuse)
    assert path in {folder.path for folder in find()}
    with pytest.raises(OSError, match="closed/compiled"):
        find([closed])


def test_a_copy_of_a_remote(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    path = store(tmp_path / "store")
    url = (tmp_path / "remote").as_uri()
    with ws.RecordStore.open(path) as opened:
        opened.push(url, progress=False)
    copies = tmp_path / "cache" / "warmstore" / "remote"
    with ws.RecordStore.open(url) as there:
        assert there["x"][:].tolist() == list(range(10))
        (state,) = states(copies)
        assert (state.kind, state.entries, state.in_use, state.is_data) == ("copy", 10, True, False)
        assert there.path in {folder.path for folder in find()}
    (state,) = states(copies)
    assert not state.in_use


def test_a_store_that_resembles_a_cache_is_data(tmp_path: Path) -> None:
    key, wide = ws.Array("uint64", (2,)), ws.Array("float32", (4,))
    resembling = {
        "function": ({"key": ws.Array("int64"), "value": wide}, {"function": "labels"}),
        "structure": ({"key": ws.Array("int64"), "value": wide}, {"structure": "BCC lattice", "fingerprint": "ECFP4"}),
        "fields": ({"key": key, "leaf/output": wide}, {"structure": "BCC lattice", "fingerprint": "ECFP4"}),
        "no leaves": ({"key": key, "value": wide}, {"structure": {"node": "tensor"}, "fingerprint": {}}),
    }
    for name, (fields, metadata) in resembling.items():
        ws.RecordStore.create(tmp_path / name, fields, metadata=metadata).close()
    assert {state.path.name: (state.kind, state.is_data) for state in states(tmp_path)} == dict.fromkeys(
        resembling, ("store", True)
    )
    for name in resembling:
        with pytest.raises(StoreExists, match="no feature cache"):
            clear(tmp_path / name)


def test_folders_in_others_are_listed_and_counted_once(tmp_path: Path) -> None:
    compiled(tmp_path)
    outer = store(tmp_path / "store")
    inner = store(outer / "labels")
    features(tmp_path, "net")
    found = {state.path.name: state for state in states(tmp_path)}
    assert found.keys() == {tmp_path.name, "store", "labels", "net"}
    assert sum(state.nbytes for state in found.values()) == allocated_bytes(tmp_path)
    assert found["store"].nbytes == allocated_bytes(outer) - allocated_bytes(inner)


def test_a_store_without_its_description_is_found(tmp_path: Path) -> None:
    (store(tmp_path / "store") / "store.json").unlink()
    (state,) = states(tmp_path)
    assert state.kind == "store"
    assert "store.json" in state.problem
    (found,) = [verify(state, progress=False)]
    assert (found.ok, found.repair) == (False, f"warmstore store verify {tmp_path / 'store'} --repair")


def test_a_folder_that_cannot_be_listed_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = store(tmp_path / "closed" / "store").parent
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (state,) = states(tmp_path)
    assert (state.kind, state.path, state.free) == ("unreadable", closed, "")
    assert "Permission denied" in state.problem
    assert not verify(state).ok
    assert not plan_removals([state], older_than=0).removals


@pytest.mark.parametrize("below", ["", "alike"])
def test_a_version_that_cannot_be_looked_into_hides_no_other(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (2, 3):
        pipeline(tmp_path / "plans", factor)
    first, second = (state.path for state in states(tmp_path))
    closed = first / below if below else first

    def refusing(call: Any) -> Any:
        def refuse(path: Any, *args: Any, **options: Any) -> Any:
            real = Path() if isinstance(path, int) else Path(os.fsdecode(path))
            if closed in real.parents or (closed == real and call is scandir):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **options)

        return refuse

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", refusing(scandir))
    monkeypatch.setattr(os, "stat", refusing(os.stat))
    found = {state.path: state for state in states(tmp_path)}
    assert found.keys() == {first, second}
    assert (found[second].entries, found[second].problem) == (30, "")
    assert "Permission denied" in found[first].problem
    assert not verify(found[first], progress=False).ok


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "2024" / "holiday.jpg"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"a photo")
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as photos:
        photos.execute("CREATE TABLE photos (name TEXT)")
        photos.commit()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert states(tmp_path) == []
    for _ in range(2):
        with pytest.raises(NotAStore, match="is no index of a compile cache; choose another folder"):
            ArtifactStore(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [b"", b"no database" * 1000], ids=["empty", "garbage"])
def test_a_damaged_index_is_still_a_compile_caches(damage: bytes, tmp_path: Path) -> None:
    compiled(tmp_path)
    (tmp_path / "index.sqlite").write_bytes(damage)
    (state,) = states(tmp_path)
    assert state.kind == "compiled"
    (tmp_path / "blobs" / "mine").mkdir()
    (tmp_path / "blobs" / "mine" / "notes.txt").touch()
    result = verify(state)
    assert not result.ok
    assert "the index was damaged" in "".join(result.lines)
    assert (tmp_path / "blobs" / "mine" / "notes.txt").exists()
