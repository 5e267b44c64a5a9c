"""Spark writes a store: tasks that fail and are retried, or run twice at once, leave their records once."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warmstore[fleet]'")
FIELDS = {"n": ws.Array("int64"), "attempt": ws.Array("int64")}


@pytest.fixture
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    builder = SparkSession.builder.master(request.param).config("spark.ui.enabled", "false")
    options = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def stage(write: ws.StagedWrite, folder: Path, index: int, rows: Any) -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    (folder / f"{index}-{attempt}").touch()
    with write.part() as part:
        for row in rows:
            part.append({"n": row, "attempt": attempt})
            part._store.flush()
        if index == 1 and attempt < 2:
            raise RuntimeError("fails after it has written")
        if index == 3 and attempt == 0:
            time.sleep(20)  # slower than the others: Spark starts a second attempt
    return [(index, part.staged)]


@pytest.mark.parametrize(
    ("session", "speculates"), [("local[2,4]", False), ("local-cluster[2,1,512]", True)], indirect=["session"]
)
def test_each_record_is_there_once(session: Any, speculates: bool, tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    (tmp_path / "out").mkdir()
    write = ws.StagedWrite(tmp_path / "out" / "s", fields=FIELDS)
    seen = tmp_path / "seen"
    numbers = session.sparkContext.parallelize(range(80), 8)
    staged = numbers.mapPartitionsWithIndex(lambda index, rows: stage(write, seen, index, rows)).collect()
    assert write.commit([part for _, part in sorted(staged, key=lambda pair: pair[0])]) == 80
    attempts = {path.name for path in seen.iterdir()}
    assert {"1-0", "1-1", "1-2"} <= attempts
    assert ("3-1" in attempts) == speculates
    with ws.RecordStore.open(tmp_path / "out" / "s") as store:
        assert store["n"][:].tolist() == list(range(80))
        assert np.unique(store["attempt"][10:20]).tolist() == [2]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["s"]
