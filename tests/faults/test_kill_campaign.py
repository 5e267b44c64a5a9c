"""Kills in stories of stores, caches and pipelines: some of those that `make torture` judges, and what it has found."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults import kill_campaign, process_stories, record_cuts
from tests.faults.children import in_child
from tests.faults.kill_campaign import Kill, KillResult, campaign, kill_of, kind_of
from tests.faults.power_campaign import Story
from tests.faults.record_cuts import FIELDS, check_store, value
from tests.faults.story_lists import KILLED
from tests.slow import either

import warmstore as ws
from warmstore.errors import Closed
from warmstore.records.write.write_buffer import block_of
from warmstore.storage import lifecycle

pytestmark = pytest.mark.forks

SHORT = ("appends", "edits", "puts", "writers")


@pytest.mark.parametrize(
    "story",
    [pytest.param(story, id=story.name, marks=() if story.name in SHORT else pytest.mark.slow) for story in KILLED],
)
def test_some_kills(story: Story) -> None:
    found = campaign(story, 0, either(4, 24), seed=3)
    assert not found.failures, found.failures[0]
    assert found.kills
    assert found.operations > 10


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, id=story.name, marks=() if story.name in ("appends", "writers") else pytest.mark.slow)
        for story in KILLED
    ],
)
@pytest.mark.usefixtures("memory_cgroup")
def test_some_lacks_of_memory(story: Story) -> None:
    found = kill_campaign.shortages(story, 0, either(4, 24), seed=3)
    assert not found.failures, found.failures[0]
    assert found.kills


def test_all_kinds_of_kills_are_drawn() -> None:
    alone = {str(kill_of(record_cuts.STORIES[0], 9, number)).split(" after")[0] for number in range(99)}
    assert {
        "SIGKILL to it",
        "SIGTERM to it",
        "SIGINT to it",
        "SIGKILL to it before operation 0",
        "SIGKILL to it in the middle of operation 8",
    } <= alone
    several = {str(kill_of(process_stories.STORIES[0], 9, number)).split(" after")[0] for number in range(99)}
    assert several == {f"{name} to it" for name in ("SIGKILL", "SIGTERM", "SIGINT")} | {"SIGKILL to a child"}


def leaves_a_child_behind(root: Path, telling: Any) -> list[Any]:
    supervisor = os.getppid()
    if not os.fork():
        os.kill(supervisor, signal.SIGALRM)  # it has waited for long enough
        time.sleep(600)
    return [None]


def test_a_hang_tells_where_it_stands(tmp_path: Path) -> None:
    story = record_cuts.RecordStory(leaves_a_child_behind)
    kill = Kill(None, is_torn=False, signal=signal.SIGTERM, part=1, child=False)
    ended = in_child(lambda say: kill_campaign._supervise(story, tmp_path, kill, 600, say))
    (said,) = ended.said
    assert said.startswith("a hang")
    assert "in leaves_a_child_behind" in said


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("a hang: it runs", "hangs"),
        ("a crash by signal 11", "crashes"),
        ("AssertionError: [0] is there; one of [[0, 1]] was promised", "lost"),
        ("AssertionError: [3] were flushed, and miss", "lost"),
        ("AssertionError: ('text', 3)", "wrong"),
        ("OSError: [Errno 9]", "others"),
    ],
)
def test_kinds_of_failures(why: str, kind: str) -> None:
    assert kind_of(why) == kind
    assert hasattr(KillResult("story"), kind)


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


CHANGES: dict[str, Callable[[ws.RecordStore], object]] = {
    "flush": lambda store: store.flush(),
    "seal": lambda store: store.seal(),
    "append": lambda store: store.append(value(1)),
    "commit": lambda store: store._commit_rows(block_of(store.fields, {n: [v] for n, v in value(1).items()})),
    "update": lambda store: store.update(0, value(1)),
    "delete": lambda store: store.delete(0),
    "rebalance": lambda store: store.rebalance(progress=False),
    "drop a field": lambda store: store.drop_field(next(iter(store.fields)), progress=False),
    "annotate": lambda store: store.annotate("name", 1),
}


@pytest.mark.parametrize("name", [*CHANGES, "close"])
def test_a_store_that_another_thread_closes_meanwhile_uses_no_closed_file(tmp_path: Path, name: str) -> None:
    """As the thread that flushes after a SIGTERM, while the main thread goes on and closes the store."""
    store = ws.RecordStore.create(tmp_path / "s", FIELDS)
    store.append(value(0))
    store._session.lock = ClosedMeanwhile(store)  # type: ignore[assignment]
    if name == "close":
        store.close()
    else:
        with pytest.raises(Closed):
            CHANGES[name](store)
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
