"""What a session brings and takes in, with a stand-in for the compiler: files in a folder."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.compiling.hosts import KEY, threads_end

from warmstore.compiling.environment import Environment
from warmstore.compiling.misses.key_descriptions import KeyDescription
from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts
from warmstore.compiling.scratch.harvester import Harvester
from warmstore.compiling.scratch.scratch_dir import ScratchDir, other_places, why_not
from warmstore.compiling.session import CompileSession
from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.remote.limits import StallBudget
from warmstore.remote.objects import Objects
from warmstore.remote.signing import Keyring

pytestmark = pytest.mark.forks

HERE = Environment(system="Linux", machine="x86_64", python="cpython-3.11.7", torch="2.13.0", capability="avx512")
GRAPH = "inductor/fxgraph/ab/fab/"
LIBRARY = "inductor/cd/ccd.main.so"

Open = Callable[..., CompileSession]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Open]:
    """Open a session of a process of its own, as far as its folders go."""
    opened = []

    def open_(folder: Path = tmp_path / "store", environment: Environment = HERE, **options: Any) -> CompileSession:
        store = ArtifactStore(folder, options.pop("max_size", "1GB"))
        live = ScratchDir.create([folder / "live", *other_places()])
        settings = {"job": "job", "requirements": dict, "flights": None, "wait": 10.0, **options}
        opened.append(CompileSession(store, live, environment, **settings))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def compiled(session: CompileSession, path: str, data: bytes) -> None:
    """What a compiler does."""
    target = session.live.path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def until(true: Callable[[], bool]) -> None:
    """Wait until something another thread does has happened."""
    while not true():
        time.sleep(0.001)


def test_what_is_looked_up_is_there_and_nothing_else(session: Open) -> None:
    first = session()
    for name in (GRAPH + "one", GRAPH + "two", "inductor/fxgraph/ab/fabc/three"):
        compiled(first, name, name.encode())
    first.close()
    second = session()
    assert not list(second.live.files())
    assert second.wanted(GRAPH, alone=True)
    assert {path for path, _ in second.live.files()} == {GRAPH + "one", GRAPH + "two"}
    assert (second.live.path / GRAPH / "two").read_bytes() == (GRAPH + "two").encode()
    second.close()
    assert second.kept == 0
    assert not second.live.path.exists()


def test_what_is_saved_is_taken_in_before_others_go_on(session: Open, tmp_path: Path) -> None:
    first, second = (session(flights=_flights(tmp_path)) for _ in range(2))
    assert not first.wanted(GRAPH, alone=True)
    assert _flights_of_another_process(tmp_path, GRAPH) is False
    compiled(first, GRAPH + "one", b"graph")
    first.made(GRAPH)
    until(lambda: _flights_of_another_process(tmp_path, GRAPH))
    assert second.wanted(GRAPH, alone=True)


def test_a_compilation_that_failed_keeps_nobody_waiting(session: Open, tmp_path: Path) -> None:
    first = session(flights=_flights(tmp_path))
    first.wanted(GRAPH, alone=True)
    assert not _flights_of_another_process(tmp_path, GRAPH)
    first.landed()
    assert _flights_of_another_process(tmp_path, GRAPH)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_lookup_that_fails_after_it_took_the_flight_keeps_nobody_waiting(
    session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    first = session(flights=_flights(tmp_path))
    restored = []

    def restore(path: str) -> tuple[int, list[str]]:
        restored.append(path)
        if len(restored) > 1:
            raise error
        return 0, []

    monkeypatch.setattr(first._restorer, "restore", restore)
    with pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else nullcontext():
        assert not first.wanted(GRAPH, alone=True)
    assert len(restored) == 2
    assert _flights_of_another_process(tmp_path, GRAPH)


def test_an_interrupt_right_after_the_flight_was_taken_keeps_nobody_waiting(
    session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = session(flights=_flights(tmp_path))
    wait = SingleFlight.wait

    def interrupted(flights: SingleFlight, key: str, seconds: float) -> bool:
        wait(flights, key, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(SingleFlight, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.wanted(GRAPH, alone=True)
    with pytest.raises(KeyboardInterrupt), first.alone("package"):
        pass
    assert _flights_of_another_process(tmp_path, GRAPH)
    assert _flights_of_another_process(tmp_path, "package")


def test_waiting_is_bounded(session: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with _InFlightElsewhere(tmp_path, GRAPH):
        late = session(flights=_flights(tmp_path), wait=0.05)
        assert not late.wanted(GRAPH, alone=True)
    assert late.lookups[0].waited >= 0.05
    assert "not waiting any longer" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"half", b"other", None])
def test_what_is_not_what_was_stored_never_comes(session: Open, tmp_path: Path, damage: bytes | None) -> None:
    first = session()
    compiled(first, GRAPH + "one", b"half and half")
    first.close()
    (blob,) = (tmp_path / "store" / "blobs").glob("*/*")
    if damage is None:
        blob.unlink()
    else:
        blob.write_bytes(damage)
    second = session()
    assert not second.wanted(GRAPH, alone=False)
    assert not list(second.live.files())
    assert second.lookups[0].reasons


@pytest.mark.parametrize("key", ["inductor/fxgraph/ab/../../../../../fab/x", "/etc/x", "inductor/ab/cab.py", "x"])
def test_an_artifact_that_would_go_elsewhere_does_not(session: Open, tmp_path: Path, key: str) -> None:
    with ArtifactStore(tmp_path / "store") as store:
        store.put(key, "fx_graph", b"x", environment=HERE, job="job")
    one = session()
    assert one.restore_job("job") == 0
    assert not one.wanted(key, alone=False)
    assert not list(one.live.files())


def test_a_library_is_taken_in_once_it_is_whole(session: Open) -> None:
    data = _a_library()
    one = session()
    compiled(one, LIBRARY, data[:-1])
    one.harvest()
    assert one.kept == 0
    compiled(one, LIBRARY, data)
    one.harvest()
    assert one.kept == 1


def test_what_was_made_elsewhere_is_refused_with_a_reason(session: Open) -> None:
    first = session()
    compiled(first, GRAPH + "one", b"x")
    first.close()
    second = session(environment=replace(HERE, capability="avx2"))
    assert not second.wanted(GRAPH, alone=False)
    assert "needs capability avx512, here is avx2" in second.lookups[0].reasons[0]


def test_a_job_brings_what_it_used(session: Open) -> None:
    first = session()
    compiled(first, "triton/hash/kernel.cubin", b"cubin")
    compiled(first, "inductor/dynamo/code_state_job_0.pkl", b"profile")
    first.close()
    second = session()
    assert second.restore_job("another") == 0
    assert second.restore_job("job", frozenset({"triton.cubin"})) == 1
    assert {path for path, _ in second.live.files()} == {"triton/hash/kernel.cubin"}


def test_requirements_are_those_at_the_lookup_and_jax_has_none(session: Open) -> None:
    """The thread that stores has other options than the one that compiles."""
    now = {"isa": ["avx2"], "capability": None}
    first = session(requirements=lambda: dict(now))
    library, program = LIBRARY, "jax/jit_f-0a-cache"
    for path in (library, program):
        first.wanted(path, alone=False)
    now.clear()
    for path in (library, program):
        compiled(first, path, _a_library())
    first.harvest()
    assert {artifact.key: artifact.requirements for artifact in first.store.all()} == {
        library: {"isa": ["avx2"], "capability": None},
        program: {},
    }


def test_triton_groups_name_files_of_the_folder_they_are_in(session: Open) -> None:
    first = session()
    group = "triton/hash/__grp__kernel.json"
    child = f"{first.live.path}/triton/hash/kernel.cubin"
    compiled(first, group, b'{"child_paths": {"kernel.cubin": "%s"}}' % child.encode())
    first.close()
    second = session()
    assert second.wanted("triton/hash/", alone=False)
    assert (second.live.path / group).read_text() == (
        f'{{"child_paths": {{"kernel.cubin": "{second.live.path}/triton/hash/kernel.cubin"}}}}'
    )


def test_a_store_that_fails_is_a_miss(session: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = session()
    compiled(one, GRAPH + "one", b"x")
    one.store.close()
    assert not one.wanted(GRAPH, alone=True)
    one.close()
    assert "cannot be stored" in caplog.text


def test_what_is_stored_while_another_thread_looks_up_is_kept(session: Open) -> None:
    one = session()
    one.describe(GRAPH, lambda: KeyDescription({"part": "text"}))
    one.wanted(GRAPH, alone=True)
    count = 0

    class Path(str):
        __slots__ = ()

        def startswith(self, *args: Any) -> bool:
            nonlocal count
            count += 1
            other = f"inductor/fxgraph/cd/{count}/"
            one.describe(other, lambda: KeyDescription({"part": other}))
            one.wanted(other, alone=True)  # as another thread, between two steps of the search
            return super().startswith(*args)

    one._keep_file(Path(LIBRARY), "cpp.so", b"library", 0.0)
    one._keep_file(Path(GRAPH + "one"), "fx_graph", b"graph", 0.0)
    assert [one.store.find(path, None, HERE) is not None for path in (LIBRARY, GRAPH + "one")] == [True, True]


def test_what_is_too_large_is_not_kept_and_the_rest_is(session: Open, caplog: pytest.LogCaptureFixture) -> None:
    first = session(max_size="8MiB")
    compiled(first, GRAPH + "large", os.urandom(9 << 20))
    compiled(first, GRAPH + "small", b"x")
    first.close()
    assert "9,437,184" in caplog.text
    second = session()
    assert second.wanted(GRAPH, alone=False)
    assert {path for path, _ in second.live.files()} == {GRAPH + "small"}


def test_eviction_while_another_process_loads(session: Open) -> None:
    first = session()
    for at in range(50):
        compiled(first, f"inductor/fxgraph/ab/f{at:02}/x", os.urandom(2000))
    first.close()
    loading, clearing = session(), session()
    clearer = threading.Thread(target=lambda: [clearing.store.clear() for _ in range(3)])
    clearer.start()
    for at in range(50):
        loading.wanted(f"inductor/fxgraph/ab/f{at:02}/", alone=False)
    clearer.join()
    assert len(loading.lookups) == 50
    assert all(status.st_size == 2000 for _, status in loading.live.files())


def test_a_forked_child_touches_nothing(session: Open) -> None:
    one = session()
    child = os.fork()
    if not child:
        one.leave()
        one.wanted(GRAPH, alone=True)
        one.live.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert one.live.path.exists()
    assert not one.lookups


def test_a_forked_child_waits_for_no_lock_of_the_harvester(session: Open) -> None:
    one = session()
    held, over = threading.Event(), threading.Event()

    def harvest() -> None:
        with one._harvester._wake.lock:
            held.set()
            over.wait()

    harvester = threading.Thread(target=harvest)
    harvester.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(60)
        one.leave()
        one.made(GRAPH)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    over.set()
    harvester.join()
    assert status == 0


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.remotes
@pytest.mark.parametrize(
    ("of", "name"),
    [
        (CompileSession, "_remember_run"),
        (Harvester, "harvest"),
        (RemoteArtifacts, "_publish_rest"),
        (SingleFlight, "close"),
    ],
    ids=["job", "files", "publishing", "flights"],
)
def test_an_interrupt_as_a_session_is_closed_leaves_nothing_open(
    of: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path / "store")
    objects = Objects(tmp_path / "remote", at_exit=False)
    remote = RemoteArtifacts(objects, Keyring((KEY,)), store, HERE, job="job", budget=StallBudget(20.0))
    live = ScratchDir.create([tmp_path / "live"])
    flights = SingleFlight(tmp_path / "flights")
    with threads_end("warmstore-"):
        one = CompileSession(store, live, HERE, job="job", requirements=dict, flights=flights, wait=1.0, remote=remote)
        assert one.wanted(GRAPH, alone=True) is False
        one.keep(GRAPH + "one", "fx_graph", b"x", 1.0)
        monkeypatch.setattr(of, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.close()
        monkeypatch.undo()
        one.close()
    assert store.closed
    assert not live.path.exists()
    assert flights.begin(GRAPH)  # as all are once it is closed


def test_a_store_of_root_is_read_by_others(session: Open, seen_by_all: Path) -> None:
    store = seen_by_all / "store"
    first = session(store)
    compiled(first, GRAPH + "one", b"x")
    first.close()
    store.chmod(0o755)
    (seen_by_all / "own").mkdir()
    os.chown(seen_by_all / "own", 12345, 12345)
    child = os.fork()
    if not child:
        os.setgid(12345)
        os.setuid(12345)
        live = ScratchDir.create([store / "live", seen_by_all / "own"])
        other = CompileSession(ArtifactStore(store), live, HERE, job="job", requirements=dict, flights=None, wait=1.0)
        found = other.wanted(GRAPH, alone=True) and (live.path / GRAPH / "one").read_bytes() == b"x"
        compiled(other, GRAPH + "two", b"y")
        other.close()
        os._exit(not found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_folders_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    living = ScratchDir.create([tmp_path])
    dead = ScratchDir.create([tmp_path])
    dead.leave()
    assert dead.path.exists()
    third = ScratchDir.create([tmp_path])
    assert not dead.path.exists()
    assert living.path.exists()
    for folder in (living, third):
        folder.remove()
    assert not list(tmp_path.iterdir())


def test_folders_without_a_lock_file_are_removed_when_they_are_old(tmp_path: Path) -> None:
    new, old = tmp_path / "live-new", tmp_path / "live-old"
    for folder in (new, old):
        (folder / "jax").mkdir(parents=True)
    os.utime(old, (0, 0))
    third = ScratchDir.create([tmp_path])
    assert new.exists()
    assert not old.exists()
    third.remove()
    assert list(tmp_path.iterdir()) == [new]


def test_folders_where_others_may_write_are_refused(tmp_path: Path) -> None:
    assert why_not(tmp_path / "new") == ""
    tmp_path.chmod(0o777)
    assert "others" in why_not(tmp_path)
    tmp_path.chmod(0o1777)
    assert why_not(tmp_path) == ""
    with pytest.raises(OSError, match="no folder is suitable to compile in"):
        ScratchDir.create([Path("/proc/nowhere")])


def test_a_folder_whose_path_has_a_space_is_refused(tmp_path: Path) -> None:
    assert "space" in why_not(tmp_path / "my files")
    live = ScratchDir.create([tmp_path / "my files", tmp_path / "own"])
    assert live.path.parent == tmp_path / "own"
    live.remove()


def test_a_folder_whose_path_is_no_utf8_is_refused_and_its_store_is_used(session: Open, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    assert "is no UTF-8" in why_not(folder)
    with ArtifactStore(folder) as store:
        store.put(GRAPH + "one", "fx_graph", b"graph", environment=HERE)
    one = session(folder)
    assert one.wanted(GRAPH, alone=True), one.lookups
    one.harvest()
    assert tmp_path not in one.live.path.parents


def test_compilers_have_a_place_where_store_and_temporary_folder_have_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my temporary files"))
    live = ScratchDir.create([tmp_path / "my files", *other_places()])
    assert " " not in str(live.path)
    live.remove()


def _a_library() -> bytes:
    return next(Path(threading.__file__).parent.glob("lib-dynload/*.so")).read_bytes()


def _flights(folder: Path) -> SingleFlight:
    return SingleFlight(folder / "flights")


def _flights_of_another_process(folder: Path, key: str) -> bool:
    """Whether another process could take a flight now."""
    child = os.fork()
    if not child:
        os._exit(not _flights(folder).begin(key))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class _InFlightElsewhere:
    """A process that has taken a flight, while the block runs."""

    def __init__(self, folder: Path, key: str) -> None:
        self.go, self.end = os.pipe(), os.pipe()
        self.child = os.fork()
        if not self.child:
            os.close(self.end[1])
            flights = _flights(folder)
            flights.begin(key)
            os.write(self.go[1], b"1")
            os.read(self.end[0], 1)
            os._exit(0)
        os.close(self.end[0])

    def __enter__(self) -> None:
        os.read(self.go[0], 1)

    def __exit__(self, *_: object) -> None:
        os.close(self.end[1])
        os.waitpid(self.child, 0)
        for descriptor in self.go:
            os.close(descriptor)
