"""The folders compilers work in count in the limit, and a full one, or a full disk, stops no program."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.compiling.environments import HERE
from tests.compiling.programs import SINE, SQUARES, run
from tests.faults.small_disk import small_file_system

from warmstore.compiling.scratch.scratch_dir import ScratchDir
from warmstore.compiling.session import CompileSession
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import CompilationFailed

pytestmark = pytest.mark.forks

MIB = 1 << 20
LIMIT = 24 * MIB

Open = Callable[..., CompileSession]


def du(folder: Path) -> int:
    """What `du` counts, in bytes."""
    said = subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=False).stdout
    return int(said.split()[0])


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open a session as a process of its own would. Temporary folders are ours."""
    opened = []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    def open_(folder: Path = tmp_path / "store", max_size: int = LIMIT) -> CompileSession:
        store = ArtifactStore(folder, max_size)
        live = ScratchDir.create([folder / "live"])
        opened.append(CompileSession(store, live, HERE, job="job", requirements=dict, flights=None, wait=1.0))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def graph(at: int) -> str:
    return f"inductor/fxgraph/ab/f{at:03}/"


def compiled(session: CompileSession, at: int, size: int = MIB) -> None:
    """What a compiler does: look, and write where it is told to."""
    session.wanted(graph(at), alone=True)
    target = session.live.path / graph(at) / "entry"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(os.urandom(size))
    session.made(graph(at))


def test_the_limit_holds_with_what_running_processes_work_on(session: Open, tmp_path: Path) -> None:
    first, second, third = session(), session(), session()
    most = 0
    for at in range(24):
        for one, number in ((first, at), (second, at + 100)):
            compiled(one, number, MIB // 4)
            most = max(most, du(tmp_path / "store"))
            one.harvest()
            most = max(most, du(tmp_path / "store"))
    assert sum(third.wanted(graph(at), alone=False) for at in range(24)) > 2
    assert max(most, du(tmp_path / "store")) <= LIMIT
    stats = first.store.stats()
    assert stats.claimed >= 12 * MIB
    assert stats.counted + stats.claimed <= LIMIT
    assert stats.counters["evicted"] > 0
    for one in (first, second, third):
        one.close()
    with ArtifactStore(tmp_path / "store", LIMIT) as store:
        assert store.reserved() == []
        assert store.stats().artifacts


def test_a_program_that_outgrows_the_limit_goes_on_elsewhere(
    session: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = session()
    for at in range(30):
        compiled(one, at)
        one.harvest()
        assert du(tmp_path / "store") <= LIMIT
    assert one.live.path.parent == tmp_path / "tmp"
    assert "exceed the limit of 25,165,824 bytes" in caplog.text
    kept = one.kept
    assert 0 < kept < 30
    compiled(one, 31)
    one.close()
    assert one.kept == kept
    assert not list((tmp_path / "tmp").iterdir())


def test_room_for_more_than_the_limit_is_refused(session: Open) -> None:
    scratch = session().scratch
    assert scratch.reserve(10 * MIB)
    assert not scratch.reserve(13 * MIB)
    assert scratch.reserve(9 * MIB)


def test_a_folder_that_cannot_be_measured(session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers go on, and what they write is stored."""

    def fail(folder: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("warmstore.compiling.scratch.scratch_quota.folder_bytes", fail)
    one = session()
    for at in range(2):
        compiled(one, at)
        one.harvest()
    assert one.kept == 2


def test_what_the_killed_had_booked_is_given_back(session: Open, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        one = session()
        compiled(one, 1)
        os._exit(0)
    os.waitpid(child, 0)
    with ArtifactStore(tmp_path / "store", LIMIT) as store:
        assert len(store.reserved()) == 1
        assert store.stats().claimed > MIB
    one = session()
    compiled(one, 2)
    assert one.store.reserved() == [f"live {one.live.path}"]


def test_a_claim_of_a_folder_that_is_no_live_folder_removes_nothing(session: Open, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    with ArtifactStore(tmp_path / "store", LIMIT) as store:
        store.reserve(f"live {precious}", 4096)
        store.reserve(f"live {tmp_path / 'gone' / 'live-x'}", 4096)
    assert session().store.reserved() == [f"live {precious}"]
    assert (precious / "file").exists()


def test_claims_beyond_the_limit_leave_a_store_that_is_read(tmp_path: Path) -> None:
    with ArtifactStore(tmp_path / "store", "1GB") as large:
        large.put("k", "cpp.source", b"x", environment=HERE)
        large.reserve("live somebody's", 500 * MIB)
        with ArtifactStore(tmp_path / "store", LIMIT) as small:
            assert small.find("k", None, HERE) is not None
        large.release("live somebody's")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path, "80m") as folder:
        yield folder


def fill(folder: Path) -> None:
    """Leave no byte."""
    with open(folder / "filler", "wb", buffering=0) as filler:
        for size in (MIB, 4096):
            with suppress(OSError):
                while True:
                    filler.write(bytes(size))


def test_a_disk_that_fills_up_sends_compilers_elsewhere(session: Open, small_disk: Path, tmp_path: Path) -> None:
    before = session(small_disk / "store")
    compiled(before, 1)
    before.close()
    one = session(small_disk / "store")
    assert one.wanted(graph(1), alone=True)
    fill(small_disk)
    compiled(one, 2)
    assert one.live.path.parent == tmp_path / "tmp"
    assert one.wanted(graph(1), alone=True)  # once more, for compilers look elsewhere now
    (small_disk / "filler").unlink()
    one.close()
    with ArtifactStore(small_disk / "store", LIMIT) as store:
        assert len(store.all(kind="fx_graph")) == 2


def test_an_error_of_the_disk_is_told_from_others(
    session: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = session()
    assert not one.may_go_on(ValueError("of the program"))
    failed = RuntimeError("g++ failed")
    failed.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert one.may_go_on(failed)
    assert one.live.path.parent == tmp_path / "tmp"
    one.live.remove()
    monkeypatch.setattr("warmstore.compiling.scratch.scratch_dir.has_room", lambda folder: False)
    with pytest.raises(CompilationFailed, match=r"TMPDIR. The error was: g\+\+ failed"):
        one.may_go_on(failed)


@pytest.mark.parametrize(
    ("start", "at"),
    [
        pytest.param("warm", ".tmp", marks=pytest.mark.slow),
        pytest.param("cold", "/inductor/", marks=pytest.mark.slow),
        pytest.param("warm", ".py", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_fills_up_amid_a_compilation(
    small_disk: Path, tmp_path: Path, first_run: Path, start: str, at: str
) -> None:
    """When the first file of some kind is opened in the live folder, the last byte is taken."""
    if start == "warm":
        shutil.copytree(first_run, small_disk / "store")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""
import sys
filled = []
def fill(event, arguments):
    path = str(arguments[0]) if arguments else ""
    ours = "/inductor/" in path and path.startswith({str(small_disk)!r}) and {at!r} in path
    if event == "open" and not filled and ours:
        filled.append(path)
        with open({str(small_disk / "filler")!r}, "wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    pass
sys.addaudithook(fill)
"""
    report = run(code + SINE + "\nassert filled\n", small_disk / "store", env={"TMPDIR": str(elsewhere)})
    assert report.right
    assert report.active
    assert "compilers now work in" in report.stderr
    assert report.live is not None
    assert report.live.startswith(str(elsewhere))
    assert not list(elsewhere.glob("live-*"))
    assert at != ".tmp" or not report.misses


@pytest.mark.slow
def test_a_full_disk_does_not_stop_jax(small_disk: Path) -> None:
    pytest.importorskip("jax")
    fill_it = f"import subprocess; subprocess.run(['fallocate', '-l', '79M', {str(small_disk / 'filler')!r}])\n"
    report = run(fill_it + SQUARES, small_disk / "store")
    assert report.right
