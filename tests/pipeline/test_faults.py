"""Killed, out of room, damaged: the next epoch or run goes on, and every batch is right."""

import errno
import itertools
import os
import signal
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child
from tests.faults.small_disk import small_file_system
from tests.pipeline.functions import Opaque, change, make, shake, slow_image
from tests.pipeline.making import check, expected, plan_of
from tests.slow import thinned

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.tiers import sample_store, tier_folders
from warmstore.pipeline.tiers.tier_quota import QuotaFiles
from warmstore.storage.files import Buffer
from warmstore.storage.lease import lock_path

pytestmark = pytest.mark.forks


def kept(loader: ws.Loader) -> int:
    return int((loader._source.cached.open().rows >= 0).sum())


def disk_pipe(folder: Path, count: int = 60, **options: Any) -> tuple[Pipeline, Any]:
    pipe = ws.Pipeline(range(count)).step(make, kind="mixed").step(change).step(shake, random=True)
    return pipe, plan_of(pipe, [(2, "disk", "raw")], [count], folder=folder, **options)


@pytest.mark.parametrize("moment", thinned(6, [18, 0, 6, 12, 24, 30]))
def test_killed_while_filling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """At any write of the fill: before it, half-way through it, and after it."""
    monkeypatch.setattr(sample_store, "FLUSH", 300)
    pipe, plan = disk_pipe(tmp_path)
    for at, how in enumerate(("before", "middle", "after")):

        def die(say: Any, left: int = moment + 2 * at, how: str = how) -> None:
            count = left
            write = QuotaFiles.write

            def deadly(self: QuotaFiles, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
                nonlocal count
                count -= 1
                if count <= 0:
                    data = b"".join(buffers)
                    data = data[: {"before": 0, "middle": len(data) // 2, "after": len(data)}[how]]
                    os.pwrite(descriptor, data, offset)
                    os.kill(os.getpid(), signal.SIGKILL)
                return write(self, descriptor, buffers, offset)

            monkeypatch.setattr(QuotaFiles, "write", deadly)
            list(pipe.loader(plan, 8, workers=0))

        assert in_child(die).signal == signal.SIGKILL
        with pipe.loader(plan, 8, workers=0, seed=1) as loader:
            found = kept(loader)
            check(loader, lambda epoch: expected(pipe, 8, 1, epoch), range(2))
            assert found <= 60
            assert kept(loader) == 60
        subprocess.run(["rm", "-r", *map(str, tmp_path.iterdir())], check=True)


def test_worker_processes_killed_while_filling(tmp_path: Path) -> None:
    def deadly(index: int) -> Any:
        mark = tmp_path / f"{index} has died"  # a computed name: a file that code names by a constant counts
        if index == 33 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return make(index, "dict")

    pipe = ws.Pipeline(range(60)).step(deadly)
    plan = plan_of(pipe, [(1, "disk", "raw"), (1, "memory", "raw")], [30, 30], folder=tmp_path / "cache")
    with pipe.loader(plan, 4, workers=2, seed=2) as loader:
        got = []
        with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
            got.extend(batch for batch in loader)
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = list(loader)
        assert state["place"] + sum(len(batch["label"]) for batch in rest) == 60
        check(loader, lambda epoch: expected(pipe, 4, 2, epoch), range(1, 3))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path, "300k", may_be_in_use=False) as folder:
        yield folder


@pytest.mark.parametrize("tier", thinned(2, ["disk", "memory"]))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_or_tmpfs(small_disk: Path, monkeypatch: pytest.MonkeyPatch, tier: str, workers: int) -> None:
    monkeypatch.setattr(sample_store, "FLUSH", 30_000)
    monkeypatch.setattr(tier_folders, "SHARED", small_disk)
    monkeypatch.setattr(tier_folders, "_free", lambda folder: 1 << 40)  # it was free when it was looked at
    pipe = ws.Pipeline(range(200)).step(slow_image, side=30).step(shake, random=True)
    plan = plan_of(pipe, [(1, tier, "raw")], [200], folder=small_disk)
    with pipe.loader(plan, 8, workers=workers) as loader:
        with pytest.warns(RuntimeWarning, match="No space left on device") as said:
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        full = [warning for warning in said if "No space left on device" in str(warning.message)]
        assert 1 <= len(full) <= max(workers, 1)  # JAX, once imported, warns of each fork besides
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 3))
    with pipe.loader(plan, 8, workers=0) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert kept(loader) > 40 or tier == "memory"
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))


@pytest.mark.parametrize(
    "code",
    thinned(3, [errno.EIO, errno.EROFS, errno.EDQUOT]),
)
@pytest.mark.parametrize("at", [0, 1, 3, 6])
def test_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, at: int) -> None:
    monkeypatch.setattr(sample_store, "FLUSH", 2000)
    write, count = QuotaFiles.write, 0

    def failing(self: QuotaFiles, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        nonlocal count
        count += 1
        if count > at:
            raise OSError(code, os.strerror(code))
        return write(self, descriptor, buffers, offset)

    monkeypatch.setattr(QuotaFiles, "write", failing)
    pipe, plan = disk_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match=f"nothing more is kept here.*{code}"):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))
    monkeypatch.undo()
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
        assert kept(loader) == 60


@pytest.mark.parametrize("operation", ["read", "map"])
def test_a_disk_that_fails_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """What others have added cannot be looked for, and the end of the loader is one for the program."""
    monkeypatch.setattr(sample_store, "FLUSH", 2000)

    def failing(*arguments: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    pipe, plan = disk_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        next(batches := iter(loader))
        with pipe.loader(plan, 8, workers=0) as other:  # adds what the first one has not seen
            list(other)
        monkeypatch.setattr(QuotaFiles, operation, failing)
        with pytest.warns(RuntimeWarning, match="nothing more is kept here.*Stale file handle"):
            list(itertools.chain(batches, loader))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2, 4))
    monkeypatch.undo()
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
        assert kept(loader) == 60


def test_a_folder_that_cannot_be_written(seen_by_all: Path) -> None:
    pipe, plan = disk_pipe(seen_by_all / "cache")

    def run(say: Any) -> None:
        with pipe.loader(plan, 8, workers=0) as loader:
            with pytest.warns(RuntimeWarning, match="Permission denied"):
                check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))

    ended = in_child(run, user=65534)
    assert not ended.error, ended.error


def test_a_lease_that_cannot_be_taken(tmp_path: Path) -> None:
    """Such as that of another user's, in a folder that several users write to."""
    pipe, plan = disk_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        list(loader)
        lock = lock_path(loader._source.cached.layout.places[0].folder)
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pipe.loader(plan, 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match="the store cannot be read.*symbolic links"):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 3))


NAMES = ["store.json", "log", "000000.arrow", "about.json"]


@pytest.mark.parametrize(
    ("name", "how"), thinned(3, [(name, how) for name in NAMES for how in ("flipped", "cut", "gone")])
)
def test_damaged_files(tmp_path: Path, name: str, how: str) -> None:
    pipe, plan = disk_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        list(loader)
    for path in tmp_path.rglob(name):
        data = bytearray(path.read_bytes())
        if how == "flipped":
            for at in range(len(data) // 3, len(data), 97):
                data[at] ^= 16
            path.write_bytes(data)
        elif how == "cut":
            os.truncate(path, len(data) // 2)
        else:
            path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):
            with pipe.loader(plan, 8, workers=0) as loader:
                check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        assert kept(loader) == 60


def _named(index: int) -> dict[str, Any]:
    return {"image": np.full(3, index), "label": index}


def test_names_in_a_description_of_samples_that_were_damaged(tmp_path: Path) -> None:
    """The names of a sample's values stand in about.json: a changed letter there would be another name."""
    pipe = ws.Pipeline(range(20)).step(_named)
    plan = plan_of(pipe, [(1, "disk", "raw")], [20], folder=tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        list(loader)
    (path,) = tmp_path.rglob("about.json")
    data = path.read_bytes()
    assert data.count(b'"label"') == 1
    path.write_bytes(data.replace(b'"label"', b'"libel"'))
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        assert kept(loader) == 20


@pytest.mark.parametrize("text", [None, b"", b"warmstore keeps", b"warmstore keeps samples of pipelines in this folds"])
def test_a_lost_marker_is_written_again(tmp_path: Path, text: bytes | None) -> None:
    pipe, plan = disk_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        list(loader)
    marker = tier_folders.tier_folder(tmp_path) / "WARMSTORE"
    whole = marker.read_bytes()
    marker.unlink() if text is None else marker.write_bytes(text)
    with pipe.loader(plan, 8, workers=0) as loader:
        assert kept(loader) == 60
    assert marker.read_bytes() == whole


def test_files_of_others_are_not_taken_for_samples(tmp_path: Path) -> None:
    (tier_folders.tier_folder(tmp_path) / "2-raw-thesis").mkdir(parents=True)
    with pytest.raises(ws.StoreExists, match="not warmstore's"):
        tier_folders.disk_folder(tmp_path)


def test_a_few_values_that_cannot_be_kept(tmp_path: Path) -> None:
    def sometimes(index: int) -> Any:
        return Opaque(index) if index == 37 else index

    pipe = ws.Pipeline(range(60)).step(sometimes).step(lambda value: value if isinstance(value, int) else value.value)
    with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [60], folder=tmp_path), 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match="sample 37 cannot be kept"):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))
        assert kept(loader) == 59


def test_a_sample_that_is_too_large_leaves_out_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(index: int) -> Any:
        return b"a" * (100_000 if index == 5 else 10 + index)

    monkeypatch.setattr(sample_store, "SLOT", 1 << 16)
    pipe = ws.Pipeline(range(20)).step(large)
    with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [20], folder=tmp_path), 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match="larger than 512 MiB are not kept"):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))
        assert kept(loader) == 19
