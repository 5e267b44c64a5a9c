"""Tiers: where they lie, who shares them, when they go, and what makes them compute anew."""

import logging
import os
import shutil
import signal
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child, well
from tests.pipeline.functions import change, flip, make, slow_image, unwrap
from tests.pipeline.making import check, expected, plan_of, same
from tests.slow import thinned

import warmstore as ws
from warmstore.pipeline.tiers import sample_store, tier_folders
from warmstore.pipeline.tiers.tier_inspection import read_versions
from warmstore.pipeline.tiers.tier_quota import TierVersions, tier_quota
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.lease import lock_path

pytestmark = pytest.mark.forks


def images(paths: list[Path]) -> list[Path]:
    for at, path in enumerate(paths):
        path.write_bytes(bytes([at] * 40))
    return paths


def memory_of(loader: ws.Loader) -> Path:
    return next(one.folder for one in loader._source.held if isinstance(one, tier_folders.MemoryTier))


def kept(loader: ws.Loader) -> int:
    return int((loader._source.cached.open().rows >= 0).sum())


def test_the_disk_is_found_by_the_next_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def watched(index: int) -> Any:
        seen.append(index)
        return make(index, "array")

    pipe = ws.Pipeline(range(40)).step(watched)
    plan = plan_of(pipe, [(1, "disk", "raw"), (1, "memory", "raw")], [25, 10], folder=tmp_path / "cache")
    with pipe.loader(plan, 8, workers=0) as loader:
        list(loader)
        assert len(set(seen)) == 40
        assert kept(loader) == 35
        seen.clear()
        check(loader, lambda epoch: expected(pipe, 8, 0, 1), range(1))
        assert len(seen) == 40 + 5  # those of `expected`, and those that are not kept
    seen.clear()
    with pipe.loader(plan, 8, workers=0) as loader:
        assert kept(loader) == 25
        seen.clear()
        list(loader)
        assert len(seen) == 15
    seen.clear()
    pipe.loader(plan, 8, workers=0).close()
    assert len(seen) == 8  # of a new tier in memory, what its records look like


def test_a_program_that_goes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    pipe = ws.Pipeline(range(40)).step(make, kind="array")
    with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [40], folder=Path("cache")), 8, workers=0) as loader:
        batches = iter(loader)
        got = [next(batches)]
        monkeypatch.chdir(tmp_path / "other")
        got += batches
        assert all(map(same, got, expected(pipe, 8, 0, 0)))
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))
        assert kept(loader) == 40
    assert not list((tmp_path / "other").iterdir())


def test_memory_goes_with_the_loader(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [30])
    for workers in (0, 2):
        loader = pipe.loader(plan, 8, workers=workers)
        list(loader)
        folder = memory_of(loader)
        assert folder.parent == tier_folders.SHARED
        assert folder.stat().st_mode & 0o777 == 0o700
        loader.close()
        loader.close()
        assert not folder.exists()
        assert not lock_path(folder).exists()
    loader = pipe.loader(plan, 8, workers=0)
    del loader
    assert not folder.exists()


def test_memory_is_shared_and_goes_with_the_last(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [30])
    one, other = pipe.loader(plan, 8, workers=0), pipe.loader(plan, 8, workers=0)
    list(one)
    folder = memory_of(one)
    one.close()
    assert folder.exists()
    other._source.cached.open().refresh()
    assert kept(other) == 30
    other.close()
    assert not folder.exists()


def test_a_forked_child_takes_nothing_away(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [10, 20], folder=tmp_path)
    loader = pipe.loader(plan, 8, workers=0, resume_partial=True)
    before = list(islice(loader, 2))

    def close(say: Any) -> None:
        loader.close()
        tier_folders.sweep(tier_folders.SHARED)

    well(in_child(close))
    well(in_child(lambda say: tier_folders.sweep(tier_folders.SHARED)))
    assert memory_of(loader).exists()
    got = before + list(loader)
    for one, other in zip(got, expected(pipe, 8, 0, 0), strict=True):
        assert one.tobytes() == other.tobytes()
    assert kept(loader) == 30
    loader.close()
    assert [len(ws.RecordStore.open(path.parent)) for path in tmp_path.rglob("store.json")] == [20]


def test_memory_of_the_dead_is_swept(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [30])

    def die(say: Any) -> None:
        loader = pipe.loader(plan, 8, workers=0)
        list(loader)
        say(str(memory_of(loader)))
        os.kill(os.getpid(), signal.SIGKILL)

    ended = in_child(die)
    assert ended.signal == signal.SIGKILL
    folder = Path(ended.said[0])
    assert folder.exists()
    foreign = folder.with_name(folder.name + "0")
    foreign.mkdir()
    (foreign / "file").write_bytes(b"somebody else's")
    other = ws.Pipeline(range(7)).step(make, kind="tuple")
    other.loader(plan_of(other, [(1, "memory", "raw")], [5]), 8, workers=0).close()
    assert not folder.exists()
    assert [path.name for path in foreign.iterdir()] == ["file"]
    assert not lock_path(foreign).exists()
    shutil.rmtree(foreign)


def test_memory_that_a_removal_has_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that was killed while it removed its tier: versions, without the marker."""
    monkeypatch.setattr(tier_folders, "SHARED", tmp_path)
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [30])
    loader = pipe.loader(plan, 8, workers=0)
    list(loader)
    folder = memory_of(loader)
    left, hidden = folder.with_name(folder.name + "0"), folder.with_name(f".{folder.name}.0123abcd.cleared.tmp")
    for path in (left, hidden):
        shutil.copytree(folder, path)
        (path / "WARMSTORE").unlink()
    empty = folder.with_name(folder.name + "1")
    empty.mkdir()
    tier_folders.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f"{folder.name}.lock"}
    loader.close()
    assert not list(tmp_path.iterdir())


def test_what_removals_have_left_counts_and_makes_room(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "disk", "raw")], [30], folder=tmp_path)
    pipe.fill(plan, 4, workers=0, progress=False)
    tier = tier_folders.tier_folder(tmp_path)
    (version,) = read_versions(tier)
    left = tier / f".{version.path.name}.0123abcd.cleared.tmp"
    shutil.copytree(version.path, left)
    assert [state.path for state in read_versions(tier)] == [version.path]
    (tier / "WARMSTORE").unlink()
    tier_folders.disk_folder(tmp_path)
    versions = TierVersions(tier, 1 << 30, evicts=False)
    size = folder_bytes(left)
    before = versions.nbytes()
    assert versions.evict(1)
    assert versions.nbytes() == before - size
    assert not versions.evict(1)
    assert version.path.exists()


def test_filling_ahead(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="dict")
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [10, 15], folder=tmp_path)
    for workers, computed in ((2, 25), (0, 0)):
        done = pipe.fill(plan, 4, workers=workers, progress=False)
        assert (done.computed, done.found) == (computed, 25 - computed)
    loader = pipe.loader(plan, 8, workers=0)
    assert kept(loader) == 25
    check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
    folder = memory_of(loader)
    loader.close()
    assert folder.exists()
    pipe.close()
    assert not folder.exists()
    with pipe:
        done = pipe.fill(plan, 4, workers=0)
        assert (done.computed, done.found) == (10, 15)
        assert folder.exists()
    assert not folder.exists()


def test_a_small_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ws.Pipeline(range(30)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [30], memory=1 << 50)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tier_folders, "_free", lambda folder: 1 << 26 if folder == tier_folders.SHARED else 1 << 51)
    loader = pipe.loader(plan, 8, workers=0)
    assert memory_of(loader).parent == tmp_path
    with pytest.warns(RuntimeWarning, match=r"/dev/shm has 67,108,864 bytes free, less than .* page cache"):
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
    check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))
    assert kept(loader) == 30
    loader.close()
    assert not list(tmp_path.iterdir())


def test_no_room_for_memory_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ws.Pipeline(range(31)).step(make, kind="array")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for free, says in ((1 << 26, "/dev/shm has 67,108,864 bytes free"), (0, "there is no /dev/shm")):
        monkeypatch.setattr(tier_folders, "_free", lambda folder, free=free: free)
        with pipe.loader(plan_of(pipe, [(1, "memory", "raw")], [31], memory=1 << 50), 8, workers=0) as loader:
            assert memory_of(loader).parent == tier_folders.SHARED
            with pytest.warns(RuntimeWarning, match=f"{says}, less than .* kept until it is full"):
                check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1, 2))


@pytest.mark.parametrize("what", thinned(2, ["argument", "code", "file", "random"]))
def test_a_change_computes_anew(tmp_path: Path, program: Any, caplog: pytest.LogCaptureFixture, what: str) -> None:
    source = """
        from pathlib import Path
        import numpy as np
        SEEN = []
        def read(path, scale=1):
            SEEN.append(path)
            return np.frombuffer(Path(path).read_bytes(), np.uint8) * scale
        def last(x):
            return x[:10]
    """
    paths = images([tmp_path / f"{at}.bin" for at in range(20)])
    caplog.set_level(logging.INFO, "warmstore")

    def run(code: str = source, scale: int = 1, random: bool = False) -> int:
        module = program(code)
        pipe = ws.Pipeline(paths).step(module.read, scale=scale)
        pipe = (
            pipe.step(lambda x, rng: x + 1, random=True, name="last") if random else pipe.step(module.last, name="last")
        )
        step = pipe.cacheable
        plan = plan_of(pipe, [(step, "disk", "raw")], [20], folder=tmp_path / "cache")
        with pipe.loader(plan, 8, workers=0, sampler=ws.Sequential()) as loader:
            module.SEEN.clear()
            got = list(loader)
            computed = len(module.SEEN)
            wanted = list(expected(pipe, 8, 0, 0, ws.Sequential()))
            for one, other in zip(got, wanted, strict=True):
                assert one.tobytes() == other.tobytes()
        return computed

    assert run() == 20
    assert run() == 0
    caplog.clear()
    if what == "argument":
        assert run(scale=2) == 20
        assert "step 'read': `read(scale)` was 1, is 2, so samples are computed anew" in caplog.text
    elif what == "code":
        assert run(source.replace("x[:10]", "x[:11]")) == 20
        assert "the code of `program_under_test.last` was edited: its constants were 10, are 11" in caplog.text
    elif what == "file":
        os.utime(paths[3], ns=(0, 77))
        paths[5].write_bytes(b"other" * 8)
        assert run() == 2
        assert "disk after 'last': 18 of 20 samples are cached" in caplog.text
        for path in paths[:8]:
            os.utime(path, ns=(0, 78))
        assert run() == 8
        assert run() == 0
    else:
        assert run(random=True) == 20
        assert run(random=True) == 0
    assert run() == (8 if what == "never" else 0) or what == "file"


def test_pipelines_share_a_folder(tmp_path: Path) -> None:
    pipes = [
        ws.Pipeline(range(20)).step(make, kind="array"),
        ws.Pipeline(range(20)).step(make, kind="tuple"),
        ws.Pipeline(range(21)).step(make, kind="array"),
        ws.Pipeline(range(20)).step(make, kind="array").step(change),
    ]
    plans = [plan_of(pipe, [(len(pipe.steps), "disk", "raw")], [len(pipe)], folder=tmp_path) for pipe in pipes]
    for found in ([0, 0, 20, 0], [20, 20, 21, 20]):
        for pipe, plan, count in zip(pipes, plans, found, strict=True):
            with pipe.loader(plan, 8, workers=0) as loader:
                assert kept(loader) == count
                check(loader, lambda epoch, pipe=pipe: expected(pipe, 8, 0, epoch), range(1))


def test_old_versions_make_room(tmp_path: Path) -> None:
    """Two versions fit into the budget, and the third takes the place of the one that was used longest ago."""
    limit = 500_000
    for side in (100, 102, 101):
        pipe = ws.Pipeline(range(6)).step(slow_image, side=side)
        plan = plan_of(pipe, [(1, "disk", "raw")], [6], folder=tmp_path, disk=limit)
        with pipe.loader(plan, 3, workers=0) as loader:
            list(loader)
            assert kept(loader) == 6
            place = loader._source.cached.layout.places[0]
            assert place.quota.used() <= limit
    versions = [path for path in place.folder.parent.iterdir() if path.is_dir()]
    assert len(versions) == 2
    pipe = ws.Pipeline(range(6)).step(slow_image, side=102)
    with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [6], folder=tmp_path, disk=limit), 3, workers=0) as loader:
        assert kept(loader) == 6


def test_what_cannot_be_kept_is_kept_before(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array").step(hidden).step(unwrap)
    plan = plan_of(pipe, [(2, "disk", "raw")], [20], folder=tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        assert loader._source.cached.layout.places[0].step == 1
        with pytest.warns(
            RuntimeWarning, match=r"the result of step 'hidden' cannot be stored, so an earlier stage is cached"
        ):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        assert kept(loader) == 20
    pipe = ws.Pipeline(range(20)).step(hidden).step(unwrap)
    with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [20], folder=tmp_path), 8, workers=0) as loader:
        assert loader._source.cached.layout.places == ()
        with pytest.warns(RuntimeWarning, match="'hidden' cannot be stored, so samples are computed every time"):
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))


def hidden(value: Any) -> Any:
    from tests.pipeline.functions import Opaque

    return Opaque(value)


def test_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_store, "_UNCACHED_AGAIN", 1)
    pipe = ws.Pipeline(range(40)).step(slow_image, side=100)
    plan = plan_of(pipe, [(1, "disk", "raw")], [40], folder=tmp_path, direct_io=True)
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(3))
        (chunk,) = tmp_path.rglob("*.arrow")
        assert resident(chunk) < 0.2
    ordinary = plan_of(pipe, [(1, "disk", "raw")], [40], folder=tmp_path)
    with pipe.loader(ordinary, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(1))
        assert resident(chunk) > 0.8


def resident(path: Path) -> float:
    """The share of a file that is in the page cache."""
    import ctypes
    import mmap

    size = path.stat().st_size
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        flags = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        assert not libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags)
        return float(np.mean(np.frombuffer(flags, np.uint8) & 1))


def test_bytes_stay_within_the_budget_while_several_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_store, "FLUSH", 40_000)
    limit = 1_000_000
    pipe = ws.Pipeline(range(200)).step(slow_image, side=60)
    plan = plan_of(
        pipe, [(1, "disk", "raw"), (1, "memory", "raw")], [100, 100], folder=tmp_path, disk=limit, memory=limit
    )

    def fill(say: Any) -> None:
        with pipe.loader(plan, 4, workers=2, seed=1) as loader:
            folders = [place.folder.parent for place in loader._source.cached.layout.places]
            most = [0, 0]
            for _ in range(2):
                for _ in loader:
                    for at, folder in enumerate(folders):
                        most[at] = max(most[at], taken(folder))
            say(most)
            check(loader, lambda epoch: expected(pipe, 4, 1, epoch), range(2, 3))

    (most,) = well(in_child(fill))
    assert 0.8 * limit < most[0] <= limit
    assert 0.8 * limit < most[1] <= limit


def taken(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_a_quota_counts_what_others_write(tmp_path: Path) -> None:
    quota = tier_quota(tmp_path, 20_000)
    assert quota.used() == 4096
    (tmp_path / "file").write_bytes(bytes(5000))
    assert quota.free(0) == 20_000 - 4096 - 8192
    with pytest.raises(OSError, match="budget of 20,000 bytes"), quota.reserve(20_000):
        pass


def test_random_pipelines_keep_the_source(tmp_path: Path) -> None:
    store = ws.RecordStore.create(
        tmp_path / "store", {"image": ws.Array("uint8", (4, 4, 3)), "label": ws.Array("int64")}
    )
    store.extend({"image": np.arange(20 * 48, dtype=np.uint8).reshape(20, 4, 4, 3), "label": np.arange(20)})
    store.flush()
    pipe = ws.Pipeline(store["image"]).step(flip, random=True)
    plan = plan_of(pipe, [(0, "memory", "zstd")], [20])
    with pipe.loader(plan, 6, workers=0, seed=3) as loader:
        check(loader, lambda epoch: expected(pipe, 6, 3, epoch), range(3))
        assert kept(loader) == 20
    records = ws.Pipeline(store).step(lambda record: {**record, "label": int(record["label"])})
    with records.loader(plan_of(records, [(1, "memory", "raw")], [20]), 6, workers=2) as loader:
        check(loader, lambda epoch: expected(records, 6, 0, epoch), range(2))
    store.close()


def test_only_steps_that_allow_a_tier_stand_in_for_a_later_one(tmp_path: Path) -> None:
    for cache in ("never", "memory"):
        pipe = ws.Pipeline(range(20)).step(make, kind="array").step(unwrapped, cache=cache).step(hidden)  # type: ignore[arg-type]
        plan = plan_of(pipe, [(3, "disk", "raw")], [20], folder=tmp_path)
        with pipe.loader(plan, 8, workers=0) as loader:
            assert loader._source.cached.layout.places[0].step == 1
            with pytest.warns(RuntimeWarning, match="cannot be stored"):
                list(loader)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith("2-")]


def unwrapped(value: Any) -> Any:
    return value


class Nameless:
    """It has no identity."""

    def __init__(self) -> None:
        self.lines = (line for line in ())


NAMELESS: Any = None


def reads_a_global(value: Any) -> Any:
    return value if NAMELESS is None else [value]


def test_a_forced_step_that_has_lost_its_identity_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind="array").step(reads_a_global, cache="disk")
    plan = plan_of(pipe, [(2, "disk", "raw")], [20], folder=tmp_path)
    pipe.loader(plan, 8, workers=0).close()
    monkeypatch.setattr(f"{__name__}.NAMELESS", Nameless())
    with pytest.raises(ws.NoFingerprint, match="NAMELESS"):
        pipe.loader(plan, 8, workers=0)
