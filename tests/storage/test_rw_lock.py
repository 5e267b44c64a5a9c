"""Many copy at once, and who makes holes is alone: threads and processes."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from warmstore.storage.files import Files
from warmstore.storage.rw_lock import RWLock

pytestmark = pytest.mark.forks


def test_alone_waits_for_all_and_keeps_all_out(tmp_path: Path) -> None:
    gate, order = RWLock(tmp_path / "lock", Files()), []
    readers = [contextlib.ExitStack() for _ in range(2)]
    for reader in readers:
        reader.enter_context(gate.inside())

    def alone() -> None:
        with gate.alone():
            order.append("alone")

    def late() -> None:
        with gate.inside():
            order.append("late")

    first = threading.Thread(target=alone)
    first.start()
    while not gate._alone:
        pass
    second = threading.Thread(target=late)
    second.start()
    order.append("inside")
    for reader in readers:
        reader.close()
    first.join()
    second.join()
    assert order == ["inside", "alone", "late"]


def test_between_processes(tmp_path: Path) -> None:
    program = f"""if True:
        from pathlib import Path
        from warmstore.storage.files import Files
        from warmstore.storage.rw_lock import RWLock
        with RWLock(Path({str(tmp_path / "lock")!r}), Files()).inside():
            print("inside", flush=True)
            input()
            Path({str(tmp_path / "left")!r}).touch()
    """
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "inside\n"
    gate = RWLock(tmp_path / "lock", Files())
    with gate.inside():
        pass
    child.stdin.write("\n")
    child.stdin.flush()
    with gate.alone():
        assert (tmp_path / "left").exists()
    child.communicate()


def test_a_forked_child_does_not_let_go_of_its_parents_lock(tmp_path: Path) -> None:
    gate = RWLock(tmp_path / "lock", Files())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)
        with gate.inside():
            pass
        os._exit(0)
    with gate.inside():
        os.write(write, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with open(tmp_path / "lock", "rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(read)
    os.close(write)


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    gate, entered, end = RWLock(tmp_path / "lock", Files()), threading.Event(), threading.Event()

    def stay() -> None:
        with gate.alone():
            entered.set()
            end.wait(120)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(120)
    child = os.fork()
    if not child:
        with gate.inside():  # as soon as the parent's thread is out
            os._exit(0)
    end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("other", ["thread", "process"])
@pytest.mark.parametrize("kind", ["alone", "inside"])
def test_an_interrupt_while_it_waits_leaves_the_lock_free(tmp_path: Path, kind: str, other: str) -> None:
    """A writer that was interrupted kept all later readers of the process waiting, for ever."""
    gate, held = RWLock(tmp_path / "lock", Files()), threading.Event()
    holder = gate if other == "thread" else RWLock(tmp_path / "lock", Files())  # with a descriptor of its own
    end = threading.Event()

    def hold() -> None:
        with holder.inside() if kind == "alone" else holder.alone():
            held.set()
            end.wait(120)

    def interrupt() -> None:
        while not (gate._waiting if holder is gate else gate._alone or gate._inside):
            pass
        while not interrupted:  # again: Python does not notice a signal that comes just before a wait
            signal.pthread_kill(main, signal.SIGINT)
            end.wait(0.05)

    def once(*ignored: object) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    main, before = threading.get_ident(), signal.signal(signal.SIGINT, once)
    try:
        threads = [threading.Thread(target=target) for target in (hold, interrupt)]
        threads[0].start()
        assert held.wait(120)
        threads[1].start()
        with pytest.raises(KeyboardInterrupt), getattr(gate, kind)():
            pass
        end.set()
        for thread in threads:
            thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    for free in (gate.inside, gate.alone, holder.alone, holder.inside):
        with free():
            pass
    assert (gate._inside, gate._alone) == (0, False)
