"""The history of the compile cache: hits, and misses by reason."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.compiling.hosts import HERE
from tests.compiling.test_session import GRAPH, compiled, session

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.misses.compile_recorder import compile_seconds
from warmstore.compiling.misses.lookup_log import FOLDER, read
from warmstore.storage.history import NAME, read_history

__all__ = ["session"]  # a fixture


def test_a_run_that_compiles_and_one_that_finds(session, tmp_path: Path) -> None:
    first = session()
    assert not first.wanted(GRAPH, alone=False)
    compiled(first, GRAPH + "one", b"graph")
    first.close()
    second = session()
    assert second.wanted(GRAPH, alone=True)
    second.close()
    made, found = read_history(tmp_path / "store" / FOLDER)
    assert (made["kind"], made["job"], made["hits"], made["misses"], made["made"]) == ("compiled", "job", 0, 1, 1)
    assert made["reasons"] == {"it was not compiled here before": 1}
    assert made["bytes_written"] == len(b"graph")
    assert made["computed_seconds"] > 0
    assert (found["hits"], found["misses"], found["restored"], found["bytes_read"]) == (1, 0, 1, 5)
    assert found["saved_seconds"] == pytest.approx(made["computed_seconds"], abs=1e-5)
    assert "reasons" not in found
    assert len(list(read(tmp_path / "store"))) == 1  # the lookups of the last run are still found


def test_a_hit_that_is_refused_later_counts_as_a_miss(session, tmp_path: Path) -> None:
    first = session()
    assert not first.wanted(GRAPH, alone=False)
    compiled(first, GRAPH + "one", b"graph")
    first.close()
    second = session()
    assert second.wanted(GRAPH, alone=True)
    second.refused(GRAPH, "it does not load")
    second.close()
    *_, found = read_history(tmp_path / "store" / FOLDER)
    assert (found["hits"], found["misses"], found["reasons"]) == (0, 1, {"it does not load": 1})


def test_a_run_that_does_not_close_is_recorded_while_the_harvester_runs(session, tmp_path: Path) -> None:
    first = session()
    assert not first.wanted(GRAPH, alone=False)
    compiled(first, GRAPH + "one", b"graph")
    first.harvest()
    first._recorder.record_if_due()
    assert not (tmp_path / "store" / FOLDER / NAME).exists()
    first._recorder._pace.due -= 60
    first._harvester._scanned()
    (record,) = read_history(tmp_path / "store" / FOLDER)
    assert record["misses"] == 1


def test_evictions_are_counted(session, tmp_path: Path) -> None:
    first = session(max_size="8MiB")
    for number in range(8):
        first.store.put(f"answer/{number}", "answer", bytes([number]) * 1_000_000, environment=HERE)
    first.close()
    (record,) = read_history(tmp_path / "store" / FOLDER)
    assert record["evicted"] > 0


def test_seconds_in_which_several_were_compiled_count_once() -> None:
    graph = Artifact("a", "fx_graph", "", 1, HERE, created=100.0, seconds=10.0, host="one")
    others = [(100.0, 4.0, "one"), (105.0, 5.0, "one"), (120.0, 1.0, "one"), (100.0, 10.0, "two"), (50.0, 0.0, "two")]
    every = [graph, *(replace(graph, created=at, seconds=took, host=host) for at, took, host in others)]
    assert compile_seconds(every) == 10 + 5 + 1 + 10
    assert compile_seconds(every[::-1]) == 26
    assert compile_seconds([]) == 0


def test_a_file_that_is_found_late_took_until_it_was_written(session, tmp_path: Path) -> None:
    first = session()
    assert not first.wanted(GRAPH, alone=False)
    first._began[GRAPH] -= 100
    compiled(first, GRAPH + "one", b"graph")
    path = first.live.path / (GRAPH + "one")
    os.utime(path, (time.time() - 60, time.time() - 60))
    first.harvest()
    (artifact,) = first.store.all(kind="fx_graph")
    assert artifact.seconds == pytest.approx(40, abs=5)


def test_seconds_of_two_records_do_not_overlap(session, tmp_path: Path) -> None:
    first = session()
    assert not first.wanted(GRAPH, alone=False)
    first._began[GRAPH] -= 100
    for name in ("one", "two"):
        compiled(first, GRAPH + name, name.encode())
        first.harvest()
        first._recorder.record()
    first.close()
    found = [record["computed_seconds"] for record in read_history(tmp_path / "store" / FOLDER)]
    assert len(found) == 2
    assert sum(found) == pytest.approx(100, abs=5)
