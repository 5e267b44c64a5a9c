"""Spark writes a store: tasks that fail and are retried, or run twice at once, leave their records once."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warmstore[fleet]'")
FIELDS = {"n": ws.Array("int64"), "attempt": ws.Array("int64")}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two cores, and four attempts of each task."""
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    session = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def stage(write: ws.StagedWrite, folder: Path, index: int, rows: Any, again: bool = True) -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    rows = list(rows)
    (folder / f"{index}-{attempt}").touch()
    with write.part() as part:
        for row in rows:
            part.append({"n": row, "attempt": attempt})
            part._store.flush()
        if index == 1 and attempt < 2:
            raise RuntimeError("fails after it has written")
    if index == 3 and again:  # as speculation runs it, which Spark does not do on one host
        return stage(write, folder, index, rows, again=False)
    return [(index, part.staged)]


def test_each_record_is_there_once(session: Any, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "out").mkdir()
    write = ws.StagedWrite(tmp_path / "out" / "s", fields=FIELDS)
    seen = tmp_path / "seen"
    numbers = session.sparkContext.parallelize(range(80), 8)
    staged = numbers.mapPartitionsWithIndex(lambda index, rows: stage(write, seen, index, rows)).collect()
    assert write.commit([part for _, part in sorted(staged, key=lambda pair: pair[0])]) == 80
    attempts = {path.name for path in seen.iterdir()}
    assert {"1-0", "1-1", "1-2"} <= attempts
    with ws.RecordStore.open(tmp_path / "out" / "s") as store:
        assert store["n"][:].tolist() == list(range(80))
        assert np.unique(store["attempt"][10:20]).tolist() == [2]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["s"]
