"""The history of a cache: whole records from many processes, within a limit, and never an error."""

import json
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child
from tests.faults.seam import Refusing

from warmstore.storage.files import Files
from warmstore.storage.history import LARGEST, NAME, History, Pace, read_history

pytestmark = pytest.mark.forks


def figures(folder: Path, name: str = "number") -> list[Any]:
    return [record[name] for record in read_history(folder)]


def test_a_record_says_who_and_when(tmp_path: Path) -> None:
    History(tmp_path, "features").append("use", hits=3, seconds=0.123456789, nothing=None, text="x" * 5000)
    (record,) = read_history(tmp_path)
    assert (record["kind"], record["event"], record["hits"], record["pid"]) == ("features", "use", 3, os.getpid())
    assert record["seconds"] == 0.123457
    assert len(record["text"]) == 1000
    assert "nothing" not in record
    assert list(read_history(tmp_path / NAME)) == [record]


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    History(tmp_path, "features").append("use", name=os.fsdecode(b"a\xff\n</script>"), keys={"\ud800": [1.5]})
    (record,) = read_history(tmp_path)
    assert record["name"].endswith("\n</script>")
    assert record["keys"] == {"?": [1.5]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_figures_that_are_none_lose_a_record_and_raise_nothing(tmp_path: Path, value: Any) -> None:
    kept = History(tmp_path, "features")
    kept.append("use", number=value)
    kept.append("use", number=1)
    assert figures(tmp_path) == [1]


def test_a_variable_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMSTORE_HISTORY", "0")
    History(tmp_path, "features").append("use", number=1)
    assert not (tmp_path / NAME).exists()
    monkeypatch.setenv("WARMSTORE_HISTORY", "1")
    History(tmp_path, "features").append("use", number=2)
    assert figures(tmp_path) == [2]


def test_a_missing_folder_stays_missing(tmp_path: Path) -> None:
    History(tmp_path / "no", "features").append("use", number=1)
    assert not (tmp_path / "no").exists()
    assert list(read_history(tmp_path / "no")) == []


def test_a_full_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Files):
        def append(self, descriptor: int, data: Any) -> int:
            raise OSError(28, "No space left on device")

    kept = History(tmp_path, "features", files=Full())
    with caplog.at_level(logging.INFO, "warmstore"):
        kept.append("use", number=1)
        kept.append("use", number=2)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "No space left on device" in caplog.text


def test_a_folder_that_cannot_be_written_is_not_worth_a_line(
    seen_by_all: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def child(say: Callable[[Any], None]) -> None:
        with caplog.at_level(logging.DEBUG, "warmstore"):
            History(seen_by_all, "features").append("use", number=1)
        say(caplog.text)

    assert in_child(child, user=65534).said == [""]
    assert not list(seen_by_all.iterdir())


def test_torn_and_damaged_lines_are_skipped(tmp_path: Path) -> None:
    kept = History(tmp_path, "features")
    kept.append("use", number=0)
    path = tmp_path / NAME
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-20])  # a kill in the middle of a write
    kept.append("use", number=1)
    with path.open("ab") as file:
        for line in (b"[1]", b"{", b"\xff\x00", b"null", b'{"v":2}', b'{"v":1}', b"[" * 100_000, b"", b'{"v":NaN}'):
            file.write(line + b"\n")
        file.write(b'{"v":1,"kind":"x","event":"use","run":"r","n":true,"at":1}\n')
    kept.append("use", number=2)
    assert figures(tmp_path) == [0, 1, 2]


def test_a_changed_figure_loses_its_record(tmp_path: Path) -> None:
    kept = History(tmp_path, "features")
    for number in (10, 11, 12):
        kept.append("use", number=number)
    path = tmp_path / NAME
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"number":11', b'"number":91'))
    assert figures(tmp_path) == [10, 12]
    path.write_bytes(b"".join(line.rpartition(b",")[0] + b"}\n" for line in whole.splitlines()))  # as versions before
    assert figures(tmp_path) == [10, 11, 12]
    path.write_bytes(whole.replace(b'"number":11', b'"number":91').replace(b'"checksum"', b'"checksul"'))
    assert figures(tmp_path) == []  # and not as of such a version


def test_a_record_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    History(tmp_path, "features").append("use", number=1)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() * 3)
    assert figures(tmp_path) == [1]


def test_the_older_half_goes_first(tmp_path: Path) -> None:
    kept = History(tmp_path, "features", limit=64 * 4000)
    for number in range(200):
        kept.append("use", number=number, text="x" * 50)
        assert (tmp_path / NAME).stat().st_size <= 4000
    found = figures(tmp_path)
    assert found == list(range(found[0], 200))
    assert 5 < len(found) < 25
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert LARGEST == 1 << 20


def test_a_record_that_is_appended_while_the_file_is_replaced_is_kept(tmp_path: Path) -> None:
    late = History(tmp_path, "features")

    class Meanwhile(Files):
        """Another process appends before and after the rename."""

        def rename(self, source: Path, target: Path) -> None:
            late.append("use", number="before")
            super().rename(source, target)

    kept = History(tmp_path, "features", limit=64 * 1500, files=Meanwhile())
    for number in range(11):
        kept.append("use", number=number)
    assert "before" in figures(tmp_path)
    assert 10 in figures(tmp_path)

    class Replaced(Files):
        """The file is replaced between the opening and the append."""

        def append(self, descriptor: int, data: Any) -> int:
            if not done:
                done.append(1)
                path = tmp_path / NAME
                copy = path.with_name("copy")
                copy.write_bytes(path.read_bytes())
                copy.replace(path)
            return super().append(descriptor, data)

    done: list[int] = []
    History(tmp_path, "features", files=Replaced()).append("use", number="after")
    assert figures(tmp_path)[-1] == "after"
    assert done


def _write_many(folder: Path, writer: int) -> None:
    kept = History(folder, "features", limit=64 * 20_000)
    for number in range(300):
        kept.append("use", number=number, writer=writer, text="x" * 100)


def test_many_processes_write_whole_lines_and_lose_none(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, writer)) for writer in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    content = (tmp_path / NAME).read_bytes()
    assert len(content) <= 20_000 + 4 * 400
    assert len([json.loads(line) for line in content.splitlines()]) > 30  # every line is whole
    by_writer: dict[int, list[int]] = {}
    for record in read_history(tmp_path):
        by_writer.setdefault(record["writer"], []).append(record["number"])
    assert max(map(max, by_writer.values())) == 299
    for numbers in by_writer.values():  # none is missing after the first that was kept
        assert sorted(numbers) == list(range(min(numbers), max(numbers) + 1))


def test_a_kill_in_the_middle_leaves_a_history_that_goes_on(tmp_path: Path) -> None:
    class Killing(Files):
        def append(self, descriptor: int, data: Any) -> int:
            super().append(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    History(tmp_path, "features").append("use", number=0)
    ended = in_child(lambda say: History(tmp_path, "features", files=Killing()).append("use", number=1))
    assert ended.signal == signal.SIGKILL
    History(tmp_path, "features").append("use", number=2)
    assert figures(tmp_path) == [0, 2]


def test_a_forked_child_is_a_run_of_its_own(tmp_path: Path) -> None:
    kept = History(tmp_path, "features")
    kept.append("use", number=0)
    in_child(lambda say: kept.append("use", number=1))
    runs = figures(tmp_path, "run")
    assert len(set(runs)) == 2


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / NAME).symlink_to(tmp_path / "target")
    History(tmp_path, "features").append("use", number=1)
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_the_pace_of_records() -> None:
    now = [0.0]
    pace = Pace(soon=2, least=1.0, longest=40.0, clock=lambda: now[0])
    assert pace.may_end()
    assert not pace.is_due()
    pace.wrote()
    assert pace.may_end()
    pace.wrote()
    assert not pace.may_end()  # the first ones were soon
    now[0] += 1.0
    assert pace.may_end()
    assert not pace.is_due()
    intervals = []
    for _ in range(4):
        began = now[0]
        while not pace.is_due():
            now[0] += 1.0
        intervals.append(now[0] - began)
        pace.wrote()
    assert intervals == [14.0, 30.0, 40.0, 40.0]  # the first one began a second before


@pytest.mark.parametrize("operation", range(3))
def test_a_refused_replacement_keeps_the_records(tmp_path: Path, operation: int) -> None:
    files = Refusing(forever=True)
    kept = History(tmp_path, "features", limit=64 * 1500, files=files)
    files.at = operation
    for number in range(20):
        kept.append("use", number=number)
    assert files.refused
    assert figures(tmp_path) == list(range(20))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tmp"] == [NAME]
