"""Options and fixtures of the whole suite."""

import faulthandler
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.faults.memory_cgroup import MemoryCgroup
from tests.few_modules import all_modules_searched, search_few_modules
from tests.slow import either, part_of, set_run
from tests.warm import COMMON

from warmstore.storage import files

LONG_SECONDS = 2400
"""The time limit of each test of the long run: beside other work a long one takes several times its time."""

FORKED_CHILD_SECONDS = 300
"""A child that this process forked ends after this time and shows where its threads stand: it may wait for a lock. In
the long run it has the time of a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long loops too")
    parser.addoption("--fleet", action="store_true", help="run tests with clusters of Ray and Spark too")
    parser.addoption("--site", action="store_true", help="run tests in a browser too")
    parser.addoption("--gpu", nargs="?", const="cuda", help="run tests on a GPU too; --gpu=cpu tries some on the CPU")
    parser.addoption("--fresh", action="store_true", help="give each program an interpreter of its own")
    parser.addoption("--part", type=part_of, default=(1, 1), metavar="I/N", help="run the I-th of N parts of the tests")


def _spare_syncs() -> None:
    """Leave out the waits for the disk. Only a power cut shows them; the tests of those count the calls of a `Files`.

    A disk takes milliseconds for each of some 50,000. Children that are started still wait, and so does the long run.
    """

    def sync_folder(self: files.Files, folder: Path) -> None:
        os.close(os.open(folder, os.O_RDONLY | os.O_CLOEXEC))

    files._datasync = os.fstat
    files.Files.sync_folder = sync_folder  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    set_run(long=config.getoption("--slow"), fresh=config.getoption("--fresh"))
    # No example fails because the machine is busy.
    too_slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile(
        "warmstore", deadline=None, suppress_health_check=too_slow, max_examples=either(40, 100)
    )
    hypothesis.settings.load_profile("warmstore")
    if not config.getoption("--slow"):
        _spare_syncs()
        search_few_modules()
    multiprocessing.set_forkserver_preload([*COMMON])
    state = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="warmstore-state-")  # never the user's registry
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # of children: its clock counts seconds, and programs are edited faster
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as in a shell's background: children that are interrupted inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGALRM, file=2, chain=True)
    if not config.getoption("--fleet"):  # an alarm outlives exec, and would end Ray's servers
        limit = LONG_SECONDS if config.getoption("--slow") else FORKED_CHILD_SECONDS
        os.register_at_fork(after_in_child=lambda: signal.alarm(limit))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a fifth of the time tests wait, for disks, children and what is to expire."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 1


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that fork first, and leave out long ones.

    A forked child waits for ever for a lock that another thread held at the fork. JAX and obstore start threads that
    live as long as the process, so the tests that fork run before all others, and of these the ones that use a remote
    come last. xdist hands tests out in this order.
    """
    items.sort(key=lambda item: ("forks" not in item.keywords, "remotes" in item.keywords))
    part, parts = config.getoption("--part")
    items[:] = items[part - 1 :: parts]
    if config.getoption("--slow"):
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
        return
    long = [item for item in items if "slow" in item.keywords]
    short = [item for item in items if "slow" not in item.keywords]
    if short:
        config.hook.pytest_deselected(items=long)
        items[:] = short
    else:  # it says how to run them
        for item in long:
            item.add_marker(pytest.mark.skip(reason="a long loop; run with --slow"))


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Find the tests that lack the mark remotes: nothing that they or the tests after them fork can use one."""
    requests = sys.modules.get("warmstore.remote.requests")
    if "forks" not in item.keywords or "remotes" in item.keywords or requests is None:
        return
    if requests._used.process == os.getpid():
        requests._used.process = 0  # found once
        pytest.fail("a test that forks and uses a remote has the mark remotes too")


def pytest_collection_finish() -> None:
    """Leave what the imports made out of garbage collections: many tests collect, and most objects are torch's."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def all_modules() -> Iterator[None]:
    """For tests of patches: all modules are searched for them, as in the long run."""
    with all_modules_searched():
        yield


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """A folder that every user may enter and read, and only root write: for children that become somebody else.

    Not one of pytest's: every run of pytest closes the folder that all runs share to everybody else.
    """
    if os.getuid():
        pytest.skip("needs root to become somebody else")
    with tempfile.TemporaryDirectory(prefix="warmstore-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def memory_cgroup() -> Iterator[MemoryCgroup]:
    """A control group whose memory can be limited: for children, which enter it."""
    if why_not := MemoryCgroup.why_not():
        pytest.skip(why_not)
    with MemoryCgroup.made() as group:
        yield group
