"""Many processes at one store, killed ones among them, and disks that are full."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import warm
from tests.compiling.children import FILE, content
from tests.compiling.environments import HERE
from tests.compiling.store.test_artifact_store import taken
from tests.faults.small_disk import small_file_system

from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import Damaged, NoArtifact, WarmstoreError, WriteFailed

pytestmark = pytest.mark.forks

LIMIT = 10_000_000


def start(what: str, folder: Path, seed: int, rounds: int, limit: int = LIMIT) -> subprocess.Popen[str]:
    command = [sys.executable, str(FILE), what, str(folder), str(limit), str(seed), str(rounds)]
    child = warm.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "ready\n"
    return child


def finish(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        _, said = child.communicate()
        assert child.returncode == 0, said


@pytest.mark.slow
def test_eight_processes_read_right_bytes_within_the_limit(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    ArtifactStore(folder, LIMIT).close()
    children = [start("churn", folder, seed, 40) for seed in range(8)]
    most = 0
    while any(child.poll() is None for child in children):
        most = max(most, taken(folder))
    finish(children)
    assert most <= LIMIT
    with ArtifactStore(folder, LIMIT) as store:
        assert store.verify() == []
        stats = store.stats()
        assert stats.counters["evicted"] > 0
        assert stats.counters["hit"] + stats.counters["miss"] == 8 * 40
        assert "rebuilt" not in stats.counters


def test_no_use_job_or_artifact_is_lost(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path / "c", "100MB") as store:
        store.put("shared", "autotune", b"x", environment=HERE)
        finish([start("hits", tmp_path / "c", seed, 20, 100_000_000) for seed in range(4)])
        assert store.all(kind="autotune")[0].hits == 4 * 20
        assert len(store.all("job")) == 4 * 20
        assert len(store.all()) == 4 * 20 + 1


def kills(folder: Path, rounds: int) -> None:
    choice = random.Random(7)
    for number in range(rounds):
        children = [start("churn", folder, 100 * number + seed, 0) for seed in range(2)]
        time.sleep(choice.random() * 0.4)
        for child in children:
            child.kill()
        for child in children:
            child.communicate()
        assert taken(folder) <= LIMIT
        with ArtifactStore(folder, LIMIT) as store:
            assert taken(folder) <= LIMIT
            for one in store.all():
                with contextlib.suppress(NoArtifact):
                    number_of = int(one.key[1:])
                    assert store.read(one) == content(number_of, 1000 + number_of * 5000)
            store.put("k99", "cpp.source", content(99, 496000), environment=HERE)
            assert store.find("k99", None, HERE) is not None
            assert "rebuilt" not in store.stats().counters
            known = {one.digest for one in store.all()}
            there = {path.parent.name + path.name for path in (folder / "blobs").glob("*/*")}
            assert there <= known  # nothing that is not counted


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    kills(tmp_path / "c", 6)


@pytest.mark.slow
def test_killed_at_any_moment_many_times(tmp_path: Path) -> None:
    kills(tmp_path / "c", 150)


@pytest.mark.parametrize("moment", range(8))
def test_killed_between_any_two_steps_of_an_eviction_and_a_put(moment: int, tmp_path: Path) -> None:
    """The child ends at its n-th change of a file name: unfinished blob, finished one, evicted ones."""
    folder = tmp_path / "c"
    with ArtifactStore(folder, LIMIT) as store:
        for at in range(7):
            store.put(f"k{at}", "cpp.source", os.urandom(1_000_000), environment=HERE)
    child = os.fork()
    if not child:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            blob = event in ("os.rename", "os.remove") or (event == "open" and str(arguments[0]).endswith("partial"))
            if blob and str(folder) in str(arguments[0]):
                seen += 1
                if seen > moment:
                    os._exit(9)

        try:
            store = ArtifactStore(folder, LIMIT)
            sys.addaudithook(watch)
            store.put("big", "cpp.source", bytes(5_000_000), environment=HERE)
        finally:
            os._exit(1 if seen > moment else 0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, 9)
    assert taken(folder) <= LIMIT
    with ArtifactStore(folder, LIMIT) as store:
        assert store.stats().counted >= taken(folder)
        store.put("after", "cpp.source", bytes(6_000_000), environment=HERE)
        assert taken(folder) <= LIMIT
        known = {one.digest for one in store.all()}
        assert {path.parent.name + path.name for path in (folder / "blobs").glob("*/*")} <= known
        store.verify()
        known = {one.digest for one in store.all()}
        assert {path.parent.name + path.name for path in (folder / "blobs").glob("*/*")} == known


def test_eviction_while_another_process_reads(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path / "c", LIMIT) as reader:
        ones = [reader.put(f"k{at}", "cpp.source", content(at, 500_000), environment=HERE) for at in range(6)]
        churner = start("churn", tmp_path / "c", 1, 0)
        gone = 0
        ends = time.monotonic() + 300
        while gone < 3 and time.monotonic() < ends:
            for at, one in enumerate(ones):
                try:
                    assert reader.read(one) == content(at, 500_000)
                except NoArtifact:
                    gone += 1
                except Damaged:
                    pytest.fail("an evicted artifact was taken for a damaged one")
        churner.kill()
        churner.communicate()
        assert gone >= 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path, "3m") as folder:
        yield folder


def test_a_full_disk_is_an_error_and_no_harm(small_disk: Path) -> None:
    folder = small_disk / "c"
    with ArtifactStore(folder, "64MB") as store:
        stored = {}
        refused = 0
        for at in range(60):
            try:
                store.put(f"k{at}", "cpp.source", content(at, 90_000), environment=HERE)
                stored[f"k{at}"] = at
            except WriteFailed:
                refused += 1
            with contextlib.suppress(WriteFailed):
                store.used(store.all())
        assert len(stored) > 10
        assert refused > 10
        for key, at in stored.items():
            found = store.find(key, None, HERE)
            assert found is not None
            assert store.read(found) == content(at, 90_000)
    with ArtifactStore(folder, "64MB") as again:
        assert len(again.all()) == len(stored)
    (small_disk / "filler").write_bytes(b"")
    with ArtifactStore(folder, "64MB") as last:
        last.clear(job="none")
        one = last.all()[0]
        last.clear(kind="cpp.source")
        last.put("new", "cpp.source", b"x" * 90_000, environment=HERE)
        assert last.find(one.key, None, HERE) is None


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with ArtifactStore(small_disk / "c") as store:
        assert store.find("k", None, HERE) is None
        with pytest.raises(WarmstoreError):
            store.put("k", "cpp.source", b"x" * 5000, environment=HERE)
