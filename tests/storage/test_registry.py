"""The registry: what is written down when folders are opened, and that nothing of it ever fails."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests import warm

import warmstore as ws
from warmstore.storage import registry
from warmstore.storage.registry import register, registered, registry_folder, sweep


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def known() -> list[tuple[str, str]]:
    return [(entry.kind, entry.path.name) for entry in registered()]


def test_stores_and_caches_are_written_down_when_they_are_opened_for_writing(tmp_path: Path) -> None:
    ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")}).close()
    with ws.FeatureCache(tmp_path / "caches", "a/b") as cache:
        cache.put_batch([1], np.ones((1, 3)))
    assert known() == [("features", "a%2Fb"), ("store", "store")]
    for entry in registered():
        entry.file.unlink()
    ws.RecordStore.open(tmp_path / "store").close()  # only read
    assert known() == []
    ws.RecordStore.open(tmp_path / "store", "a").close()
    with ws.RecordStore.open(tmp_path / "store") as store:
        store.filter(tmp_path / "half", [0] if len(store) else []).close()
    assert known() == [("store", "half"), ("store", "store")]  # and not the draft


def test_the_real_path_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    for path in ("real", "link", tmp_path / "real", "./link/../real"):
        register("store", path)
    assert known() == [("store", "real")]


def test_the_last_use_is_written_once_a_minute(tmp_path: Path) -> None:
    register("store", tmp_path)
    (entry,) = registered()
    os.utime(entry.file, (entry.opened - 30, entry.opened - 30))
    register("store", tmp_path)
    (soon,) = registered()
    assert soon.opened == entry.opened - 30
    os.utime(entry.file, (entry.opened - 90, entry.opened - 90))
    register("store", tmp_path)
    (later,) = registered()
    assert later.opened > entry.opened - 30
    assert later.created == entry.created


def test_it_can_be_turned_off(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMSTORE_REGISTRY", "0")
    ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")}).close()
    assert not state.exists()


@pytest.mark.parametrize("base", ["", "relative"])
def test_without_a_variable_it_is_in_the_home(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", base)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert registry_folder() == Path("/home/somebody/.local/state/warmstore/folders")


def test_nothing_fails_where_it_cannot_be_written(tmp_path: Path, state: Path) -> None:
    state.write_text("a file where a folder should be")
    ws.RecordStore.create(tmp_path / "store", {"x": ws.Array("int64")}).close()
    assert registered() == []


def test_damaged_entries_are_dropped(tmp_path: Path) -> None:
    register("store", tmp_path)
    (entry,) = registered()
    for content in ("", "{", "[]", '{"kind": "store"}', '{"kind": "store", "path": 3, "created": 1}'):
        entry.file.write_text(content)
        assert registered() == []
        assert not entry.file.exists()


def test_folders_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        register("store", tmp_path / name)
    (tmp_path / "a").rmdir()
    assert [entry.path.name for entry in sweep()] == ["b"]
    assert known() == [("store", "b")]


def test_folders_that_cannot_be_looked_at_are_left_out_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open"):
        (tmp_path / name / "store").mkdir(parents=True)
        register("store", tmp_path / name / "store")
    stat = Path.stat

    def refused(path: Path, **options: bool) -> os.stat_result:
        if path.parent.name == "closed":
            raise PermissionError(errno.EACCES, "refused", str(path))
        return stat(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refused)
        assert [entry.path.parent.name for entry in sweep()] == ["open"]
    assert [entry.path.parent.name for entry in sweep()] == ["closed", "open"]


def test_short_lived_folders_do_not_fill_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SWEPT", 1.0)
    for number in range(20):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        register("store", folder)
        folder.rmdir()
    assert len(known()) <= 1


def test_names_that_are_no_text(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    register("store", folder)
    assert [entry.path for entry in registered()] == [folder]


_WORK = """
import sys
from pathlib import Path
from warmstore.storage.registry import register, registered
for folder in sorted(Path(sys.argv[1]).glob("folder*")):
    register("store", folder)
    registered()
"""


def test_many_processes_write_at_once(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"folder{number}").mkdir()
    processes = [warm.popen([sys.executable, "-c", _WORK, tmp_path]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(registered()) == 30
    assert not list(registry_folder().glob("*.tmp"))


def test_the_tests_have_a_registry_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    code = "from warmstore.storage.registry import registry_folder; print(registry_folder())"
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == registry_folder()
    assert Path.home() not in registry_folder().parents
