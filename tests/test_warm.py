"""A program that is forked from a warm interpreter has what it would have in an interpreter of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.slow import is_fresh

SEEN = """
import atexit, os, signal, sys, tempfile, warnings
atexit.register(print, "the end")
print(__name__, sys.argv, sys.path, os.getcwd(), sys.warnoptions, sys.orig_argv[1:], input())
print(vars().get("__file__"), sorted(os.environ.items()), vars(sys.modules["__main__"]) is globals())
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), sys.dont_write_bytecode)
print(tempfile.gettempdir())
print([entry for entry in warnings.filters if entry[0] == "error"], sorted(map(int, os.listdir("/dev/fd"))))
"""


def both(arguments: list[str], **options: Any) -> list[tuple[int, str, list[str]]]:
    """What a program does that is forked, and what it does in an interpreter of its own: status, output, last error."""
    command = [sys.executable, *arguments]
    options = {"capture_output": True, "text": True, **options}
    forked, fresh = warm.run(command, **options), subprocess.run(command, check=False, **options)
    return [(done.returncode, done.stdout, done.stderr.splitlines()[-1:]) for done in (forked, fresh)]


@pytest.mark.parametrize("way", ["file", "code", "module", "options"])
def test_a_program_sees_the_same(way: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SEEN)
    arguments = {
        "file": ["program.py", "a", "b c"],
        "code": ["-c", SEEN, "a"],
        "module": ["-m", "program", "-x"],
        "options": ["-W", "error", "-W", "ignore::ResourceWarning", str(tmp_path / "program.py")],
    }[way]
    environment = {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}/elsewhere",
        "NAME": "value",
        "LC_CTYPE": "C.UTF-8",
        "TMPDIR": str(tmp_path),
    }
    forked, fresh = both(arguments, cwd=tmp_path, env=environment, input="told\n")
    assert forked == fresh
    assert forked[1].endswith("the end\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('said')", 1),
        ("import io, sys; sys.stdout = io.StringIO(); sys.exit(3)", 3),
        ("import io, sys; print('a'); sys.stdout = io.TextIOWrapper(io.BytesIO()); print('b')", 0),
        ("import sys; sys.stdout.close()", 0),
        (
            "import atexit, sys, weakref\nclass A: pass\ndef main():\n    a = A()\n    r = weakref.ref(a)\n"
            "    atexit.register(lambda: print(r()))\n    sys.exit(0)\nmain()",
            0,
        ),
        ("raise ValueError('why')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import warnings; warnings.warn('more')", 0),
    ],
)
def test_a_program_ends_the_same(code: str, status: int) -> None:
    forked, fresh = both(["-c", code])
    assert forked == fresh
    assert forked[0] == status


def test_streams_and_signals() -> None:
    code = "print('ready', flush=True); print(input(), flush=True); import time; time.sleep(600)"
    with warm.popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert child.poll() is None
        child.stdin.write("told\n")
        child.stdin.flush()
        assert child.stdout.readline() == "told\n"
        child.kill()
        assert child.wait() == -signal.SIGKILL


def test_one_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.5)


PARENT = "import os; print(os.getppid(), flush=True)"
KILLED = f"""
import os, sys
from tests import warm
warm.run([sys.executable, "-c", {PARENT!r}])
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(is_fresh() or sys.platform != "linux", reason="programs share no interpreter")
def test_an_interpreter_outlives_a_worker_that_is_killed() -> None:
    def parent() -> str:
        return warm.run([sys.executable, "-c", PARENT], capture_output=True, text=True).stdout

    first = parent()
    shared = {"PYTEST_XDIST_TESTRUNUID": str(os.getpid()), **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=shared, stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == first == parent() == parent()
