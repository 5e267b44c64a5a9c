"""Kills in stories of stores, caches and pipelines: some of those that `make torture` judges, and what it has found."""

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.record_cuts import FIELDS, check_store, value

import warmstore as ws
from warmstore.errors import Closed
from warmstore.storage import lifecycle

pytestmark = pytest.mark.forks


class ClosedMeanwhile:
    """The lock of a store, which another thread closes before this one gets the lock."""

    def __init__(self, store: ws.RecordStore) -> None:
        self._store = store
        self._lock = store._session.lock

    def __enter__(self) -> Any:
        self._store._session.lock = self._lock
        closing = threading.Thread(target=self._store.close)
        closing.start()
        closing.join()
        return self._lock.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__(*exception)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["flush", "seal", "close"])
def test_a_store_that_another_thread_closes_meanwhile_uses_no_closed_file(tmp_path: Path, name: str) -> None:
    """As the thread that flushes after a SIGTERM, while the main thread goes on and closes the store."""
    store = ws.RecordStore.create(tmp_path / "s", FIELDS)
    store.append(value(0))
    store._session.lock = ClosedMeanwhile(store)  # type: ignore[assignment]
    if name == "close":
        store.close()
    else:
        with pytest.raises(Closed):
            getattr(store, name)()
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert check_store(again) == [0]


def test_a_sigterm_says_that_rows_are_lost_where_some_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owners = lifecycle._Owners()
    owners.registered = True  # with the interpreter, as the real ones are
    monkeypatch.setattr(lifecycle, "_owners", owners)
    monkeypatch.setattr(lifecycle, "_flush_and_end", None)  # nothing ends this process
    store = ws.RecordStore.create(tmp_path / "s", FIELDS)
    store.append(value(0))
    store._session.lock = ClosedMeanwhile(store)  # type: ignore[assignment]
    lifecycle._flush_all()
    assert not caplog.text
    with ws.RecordStore.open(tmp_path / "s", "a") as store:
        store.append(value(1))

        def refuse() -> None:
            raise OSError("no")

        monkeypatch.setattr(store, "flush", refuse)
        lifecycle._flush_all()
        assert "rows that were still pending are lost" in caplog.text
