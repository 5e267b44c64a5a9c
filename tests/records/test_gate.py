"""Many copy at once, and who makes holes is alone: threads and processes."""

import subprocess
import sys
import threading
from pathlib import Path

from warmstore.records.files import Files
from warmstore.records.gate import Gate


def test_alone_waits_for_all_and_keeps_all_out(tmp_path: Path) -> None:
    gate, order = Gate(tmp_path / "lock", Files()), []
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
        from warmstore.records.files import Files
        from warmstore.records.gate import Gate
        with Gate(Path({str(tmp_path / "lock")!r}), Files()).inside():
            print("inside", flush=True)
            input()
            Path({str(tmp_path / "left")!r}).touch()
    """
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "inside\n"
    gate = Gate(tmp_path / "lock", Files())
    with gate.inside():
        pass
    child.stdin.write("\n")
    child.stdin.flush()
    with gate.alone():
        assert (tmp_path / "left").exists()
    child.communicate()
