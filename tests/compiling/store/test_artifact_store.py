"""The artifact store: what goes in comes out, for the right environments, within its limit, in the order it says."""

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests import warm
from tests.compiling.environments import HERE, elsewhere
from tests.slow import thinned

from warmstore.compiling.environment import Environment
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadArtifact, Closed, NewerFormat, NoArtifact, TooLarge, WriteFailed

pytestmark = pytest.mark.forks

MB = 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache", "64MB")


def taken(folder: Path) -> int:
    """Bytes of everything in a folder as the disk counts them."""
    found = folder.lstat().st_blocks * 512
    for path in folder.rglob("*"):
        try:
            found += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return found


def read(store: ArtifactStore, key: str, environment: Environment) -> bytes:
    found = store.find(key, "cpp.so", environment)
    assert found is not None
    return store.read(found)


def test_what_was_put_is_found_and_read(store: ArtifactStore, tmp_path: Path) -> None:
    put = store.put(
        "k", "cpp.so", b"machine code", environment=HERE, seconds=2.5, job="train", requirements={"isa": []}
    )
    found = store.find("k", "cpp.so", HERE)
    assert found == put
    assert (found.size, found.seconds, found.hits, found.requirements) == (12, 2.5, 0, {"isa": []})
    assert found.environment == HERE
    assert store.read(found) == b"machine code"
    assert store.find("other", "cpp.so", HERE) is None
    assert store.find("k", "fx_graph", HERE) is None


def test_a_file_is_put_as_its_bytes(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"from a file")
    assert store.read(store.put("k", "cpp.so", tmp_path / "a.so", environment=HERE)) == b"from a file"


def test_another_process_finds_it_after_this_one_closed(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"x", environment=HERE)
    store.close()
    store.close()
    with pytest.raises(Closed, match="cache is closed"):
        store.find("k", "cpp.so", HERE)
    with ArtifactStore(store.folder) as again:
        assert again.find("k", None, HERE) is not None


def test_the_same_key_is_replaced_in_one_environment_and_kept_in_another(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"old", environment=HERE)
    store.put("k", "cpp.so", b"new", environment=HERE)
    store.put("k", "cpp.so", b"other", environment=elsewhere(torch="2.12.0"))
    assert read(store, "k", HERE) == b"new"
    assert read(store, "k", elsewhere(torch="2.12.0")) == b"other"
    assert len(store.all()) == 2
    assert store.stats().blobs == 2  # nothing is left of the old one


def test_equal_bytes_are_kept_once_and_go_with_the_last_who_needs_them(store: ArtifactStore) -> None:
    for key in ("a", "b"):
        store.put(key, "cpp.so", b"same" * 1000, environment=HERE)
    assert (store.stats().artifacts, store.stats().blobs) == (2, 1)
    store.put("a", "cpp.so", b"different", environment=HERE)
    assert read(store, "b", HERE) == b"same" * 1000


def test_an_incompatible_artifact_is_a_counted_miss_with_a_reason(store: ArtifactStore) -> None:
    store.put("k", "triton.cubin", b"sm_90", environment=HERE)
    best, reasons = store.explain("k", None, elsewhere(compute=((8, 0),)))
    assert best is None
    assert len(reasons) == 1
    assert reasons[0].endswith("needs compute capability 9.0, here is 8.0")
    store.find("nothing", None, HERE)
    store.find("k", None, HERE)
    assert store.stats().counters == {"put": 1, "incompatible": 1, "miss": 1, "hit": 1}


def test_keys_below_a_path(store: ArtifactStore) -> None:
    for key in ("a", "a/b", "a/c/d", "ab", "a0"):
        store.put(key, "cpp.so", key.encode(), environment=HERE)
    store.put("a/b", "cpp.source", b"source", environment=HERE)
    assert [one and (one.key, one.kind) for one, _ in store.below("a/", HERE)] == [
        ("a/b", "cpp.so"),
        ("a/c/d", "cpp.so"),
    ]
    assert [one and one.key for one, _ in store.below("a", HERE)] == ["a"]
    older = elsewhere(isa=())
    assert [(one and one.kind, len(reasons)) for one, reasons in store.below("a/", older)] == [
        ("cpp.source", 1),
        (None, 1),
    ]


def test_the_most_specific_artifact_wins(store: ArtifactStore) -> None:
    for kind in ("triton.ttir", "triton.cubin", "triton.ptx"):
        store.put("k", kind, kind.encode(), environment=HERE)
    said = [store.find("k", None, elsewhere(compute=(compute,))) for compute in ((9, 0), (10, 0), (8, 0))]
    assert [one and one.kind for one in said] == ["triton.cubin", "triton.ptx", "triton.ttir"]
    assert store.find("k", ("triton.ttir", "triton.ptx"), HERE) == store.find("k", "triton.ptx", HERE)


def test_uses_are_counted_and_outlive_the_process(store: ArtifactStore) -> None:
    one = store.put("k", "cpp.so", b"x", environment=HERE, seconds=3.0)
    store.used([one, one])
    store.used([one])
    store.close()
    with ArtifactStore(store.folder) as again:
        found = again.find("k", None, HERE)
        assert found is not None
        assert found.hits == 3
        assert found.last_used > one.last_used
        assert (again.stats().hits, again.stats().seconds_saved) == (3, 9.0)


def test_jobs_know_what_they_used_even_when_it_is_gone(store: ArtifactStore) -> None:
    store.put("a", "cpp.so", b"a", environment=HERE, job="train")
    store.put("b", "cpp.so", b"b", environment=HERE)
    store.record_job("train", ["b", "gone"])
    store.record_job("test", ["b"])
    assert store.job("train") == ["a", "b", "gone"]
    assert [one.key for one in store.all("train")] == ["a", "b"]
    assert [one.key for one in store.all("test")] == ["b"]
    assert store.stats().jobs == {"test": 1, "train": 3}
    assert store.job("nobody") == []


def test_clear_leaves_what_is_used_of_the_same_key_in_another_environment(store: ArtifactStore) -> None:
    there = elsewhere(torch="2.12.0")
    used = store.put("k", "cpp.so", b"used", environment=HERE)
    store.put("k", "cpp.so", b"unused", environment=there)
    with sqlite3.connect(store.folder / "index.sqlite") as db:
        db.execute("UPDATE uses SET last_used = last_used - 7200")
    store.used([used])
    assert store.clear(unused_for=3600) == 1
    assert read(store, "k", HERE) == b"used"
    assert store.find("k", "cpp.so", there) is None


def test_clear_takes_all_or_what_it_is_told(store: ArtifactStore) -> None:
    for at, kind in enumerate(("cpp.so", "fx_graph", "cpp.so")):
        store.put(f"k{at}", kind, b"%d" % at, environment=HERE, job=f"job{at}")
    assert store.clear(unused_for=3600) == 0
    assert store.clear(kind="fx_graph") == 1
    assert store.clear(job="job0") == 1
    assert [one.key for one in store.all()] == ["k2"]
    assert store.job("job0") == []
    assert store.clear() == 1
    assert store.all() == []
    assert not [path for path in (store.folder / "blobs").rglob("*") if path.is_file()]
    assert store.stats().jobs == {}


def test_a_job_keeps_the_keys_of_what_stays(store: ArtifactStore) -> None:
    for key, kind in (("a", "cpp.so"), ("b", "fx_graph"), ("c", "cpp.so"), ("c", "fx_graph")):
        store.put(key, kind, key.encode(), environment=HERE, job="train")
    store.record_job("train", ["a", "b", "c", "evicted"])
    store.record_job("test", ["b"])
    assert store.clear(job="train", unused_for=3600) == 0
    assert store.job("train") == ["a", "b", "c", "evicted"]
    assert store.clear(job="train", kind="fx_graph") == 2
    assert store.job("train") == ["a", "c", "evicted"]
    assert store.job("test") == ["b"]
    assert store.clear(job="train") == 2
    assert store.job("train") == []
    assert store.job("test") == ["b"]


@pytest.mark.parametrize(
    ("eviction", "gone"),
    [("lru", ["k1", "k2"]), ("lfu", ["k3", "k4"]), ("size", ["k0", "k5"]), ("age", ["k0", "k1"])],
)
def test_eviction_takes_what_its_name_says(
    eviction: str, gone: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000, 9000))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    monkeypatch.setattr("warmstore.compiling.store.artifact_quota._AT_ONCE", 1)
    store = ArtifactStore(tmp_path / "c", 20 * MB, eviction)
    sizes = [3_000_000, 2_000_000, 2_000_000, 2_000_000, 2_000_000, 2_900_000]
    put = [store.put(f"k{at}", "cpp.so", os.urandom(size), environment=HERE) for at, size in enumerate(sizes)]
    for at, uses in ((1, 3), (2, 3), (4, 1), (3, 1), (5, 4), (0, 5)):
        for _ in range(uses):
            store.used([put[at]])
    store.put("new", "cpp.so", os.urandom(7_500_000), environment=HERE)
    left = {one.key for one in store.all()}
    assert sorted({f"k{at}" for at in range(6)} - left) == gone
    assert "new" in left
    assert store.stats().counters["evicted"] == 2


@pytest.mark.parametrize("size", thinned(3, [pytest.param(10, marks=pytest.mark.slow), 3_000, 700_000]))
def test_the_limit_holds_at_every_moment_for_every_size(size: int, tmp_path: Path) -> None:
    """Sampled at each operation on the disk that can be seen from here."""
    limit = 9 * MB
    seen = []
    with ArtifactStore(tmp_path / "c", limit) as store:

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            if watching and event in ("os.rename", "os.remove", "open", "sqlite3.connect"):
                watching.clear()
                seen.append(taken(store.folder))
                watching.append(True)

        watching: list[bool] = []
        sys.addaudithook(watch)
        for at in range(min(40_000_000 // size, 300)):
            if at % 50 == 9:
                watching.append(True)
            one = store.put(f"k{at}", "cpp.so", os.urandom(size), environment=HERE, job=f"job {at}")
            store.used([one])
            seen.append(taken(store.folder))
            watching.clear()
        assert max(seen) <= limit
        assert len(seen) > 60
        assert store.stats().counted >= taken(store.folder)
        if size > 100_000:
            assert store.stats().counters["evicted"] > 0
            assert max(seen) > limit * 0.6  # and the room is used


def test_a_claim_counts_and_evicts(store: ArtifactStore) -> None:
    for at in range(10):
        store.put(f"k{at}", "cpp.so", os.urandom(MB), environment=HERE)
    store.reserve("inductor", 55 * MB)
    assert store.stats().claimed >= 55 * MB
    assert store.stats().counted + store.stats().claimed <= 64 * MB
    assert 0 < len(store.all()) < 10
    with pytest.raises(TooLarge, match="the reservation of 'inductor' takes 64,000,000 bytes"):
        store.reserve("inductor", 64 * MB)
    assert 55 * MB <= store.stats().claimed < 56 * MB
    store.release("inductor")
    assert store.stats().claimed == 0


def test_the_size_is_what_du_counts_and_the_limit_counts_no_holes(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", os.urandom(MB), environment=HERE)
    (store.folder / "runs").mkdir()
    (store.folder / "runs" / "log").touch()
    os.truncate(store.folder / "runs" / "log", 10 * MB)
    du = subprocess.run(["du", "-s", "--block-size=1", store.folder], check=True, capture_output=True, text=True)
    found = store.stats()
    assert MB < found.size == int(du.stdout.split()[0]) < 3 * MB
    assert found.counted > 11 * MB


def test_what_others_put_into_the_folder_counts(store: ArtifactStore) -> None:
    before = store.stats().counted
    (store.folder / "runs" / "deep").mkdir(parents=True)
    (store.folder / "runs" / "deep" / "run.json").write_bytes(bytes(55 * MB))
    assert store.stats().counted >= before + 55 * MB
    for at in range(10):
        store.put(f"k{at}", "cpp.so", os.urandom(MB), environment=HERE)
        assert taken(store.folder) <= 64 * MB
    assert 0 < len(store.all()) < 10


def test_an_artifact_larger_than_the_limit_is_refused_and_evicts_nothing(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"x", environment=HERE)
    with pytest.raises(TooLarge, match=r"the artifact 'big' takes 63,000,000 bytes; the limit of .* is 64,000,000"):
        store.put("big", "cpp.so", bytes(63 * MB), environment=HERE)
    assert [one.key for one in store.all()] == ["k"]


def test_a_lower_limit_holds_from_the_start(store: ArtifactStore) -> None:
    for at in range(10):
        store.put(f"k{at}", "cpp.so", os.urandom(2 * MB), environment=HERE)
    store.close()
    with ArtifactStore(store.folder, 10 * MB) as smaller:
        assert taken(store.folder) <= 10 * MB
        assert 2 <= len(smaller.all()) < 5


def test_jobs_alone_never_fill_a_store(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path / "c", 9 * MB) as store:
        for at in range(30):
            store.record_job(f"job {at}", [f"{'key' * 20} {at} {key}" for key in range(2000)])
            assert taken(store.folder) <= 9 * MB
        store.put("k", "cpp.so", os.urandom(MB), environment=HERE)
        assert store.find("k", "cpp.so", HERE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1MB",), "max_size '1MB' is less than the 8,388,608 bytes that a store needs"),
        (("many",), "'many' is not a size"),
        (("1GB", "newest"), "eviction 'newest' is not known; choose one of 'lru', 'lfu', 'size', 'age'"),
    ],
)
def test_nonsense_is_said_to_be_so(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        ArtifactStore(tmp_path / "c", *arguments)


def test_requirements_that_json_cannot_say(store: ArtifactStore) -> None:
    with pytest.raises(BadArtifact, match="the requirements of 'k' cannot be written as JSON"):
        store.put("k", "cpp.so", b"x", environment=HERE, requirements={"isa": {1, 2}})
    assert store.all() == []


def test_a_newer_format_is_said_to_be_one(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"x", environment=HERE)
    with store._index.alone() as index, index.transaction() as db:
        db.execute("UPDATE format SET version = 2")
        db.execute("PRAGMA user_version = 2")
    store.close()
    for read_only in (False, True):
        if read_only:
            store.folder.chmod(0o500)
        with pytest.raises(NewerFormat, match=r"index.sqlite has format 2; this warmstore reads up to 1. Upgrade"):
            ArtifactStore(store.folder)
    store.folder.chmod(0o700)


def test_a_folder_that_cannot_be_written_is_read(seen_by_all: Path) -> None:
    folder = seen_by_all / "c"
    with ArtifactStore(folder) as store:
        store.put("k", "cpp.source", b"x", environment=HERE)
    folder.chmod(0o755)
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from tests.compiling.environments import HERE
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import ReadOnly
os.setuid(65534)
store = ArtifactStore({str(folder)!r})
assert store.read_only and store.stats().read_only
found = store.find("k", None, HERE)
assert store.read(found) == b"x"
store.used([found])
for change in (lambda: store.put("n", "cpp.so", b"", environment=HERE), lambda: store.record_job("j", []), store.clear):
    try:
        change()
    except ReadOnly as error:
        assert "choose another folder" in str(error) and {str(folder)!r} in str(error)
    else:
        sys.exit("was written")
store.close()
made = ArtifactStore({str(seen_by_all / "not" / "made")!r})
assert made.read_only and made.find("k", None, HERE) is None
"""
    for live in (False, True):
        writer = ArtifactStore(folder) if live else None
        done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if writer:
            writer.close()


def test_an_index_that_cannot_be_written_is_read(seen_by_all: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = seen_by_all / "c"
    with ArtifactStore(folder) as store:
        store.put("k", "cpp.source", b"x", environment=HERE)
    for path in (folder, folder / "blobs"):
        path.chmod(0o777)
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from tests.compiling.environments import HERE
from warmstore.compiling.store.artifact_store import ArtifactStore
os.setuid(65534)
store = ArtifactStore({str(folder)!r}, "8MiB")
assert store.read(store.find("k", None, HERE)) == b"x"
"""
    done = warm.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_has_a_store_of_its_own(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"x", environment=HERE)
    inherited = {id(one._connection) for one in (store._index._reader, store._index._writer)}
    child = os.fork()
    if not child:
        try:
            store.put("child", "cpp.so", b"y", environment=HERE)
            found = store.find("k", None, HERE)
            own = {id(one._connection) for one in (store._index._reader, store._index._writer)}
            os._exit(0 if found and not own & inherited else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert {one.key for one in store.all()} == {"child", "k"}
    store.put("parent", "cpp.so", b"z", environment=HERE)


def test_a_folder_that_goes_away_is_made_again(store: ArtifactStore) -> None:
    store.put("k", "cpp.so", b"x", environment=HERE)
    subprocess.run(["rm", "-r", store.folder], check=True)
    assert store.find("k", None, HERE) is None
    store.put("k", "cpp.so", b"x", environment=HERE)
    assert store.find("k", None, HERE) is not None


def test_an_evicted_artifact_is_told_from_a_damaged_one(store: ArtifactStore) -> None:
    one = store.put("k", "cpp.so", b"x", environment=HERE)
    store.clear()
    with pytest.raises(NoArtifact, match=r"the artifact 'k' \(cpp.so\) was evicted"):
        store.read(one)


def test_a_lock_that_is_held_too_long_stops_nobody(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.compiling.children import FILE

    put = store.put("k", "cpp.so", b"x", environment=HERE)
    command = [sys.executable, str(FILE), "hold", str(store.folder), str(64 * MB), "0", "0"]
    with warm.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert [holder.stdout.readline() for _ in range(2)] == ["ready\n", "held\n"]
        assert store.find("k", None, HERE) == put
        assert store.read(put) == b"x"
        with ArtifactStore(store.folder) as other:
            assert other.find("k", None, HERE) == put
        with pytest.raises(WriteFailed, match="another process has held the lock for 0 s"):
            store._index.change(lambda index: None, 0.05)
        holder.kill()
    store.put("n", "cpp.so", b"x", environment=HERE)


def test_the_digest_of_an_environment_is_its_content() -> None:
    assert HERE.digest == replace(HERE).digest
    assert HERE.digest != elsewhere(threads=9).digest
    assert type(HERE).from_json(HERE.to_json()) == HERE
    with pytest.raises(BadArtifact, match="not an environment"):
        type(HERE).from_json('{"gpus": 3}')
