"""Many copy at once, and who makes holes is alone: threads and processes."""

import fcntl
import os
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
    gate.enter()
    gate.enter()

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
    gate.leave()
    gate.leave()
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
