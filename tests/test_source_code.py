"""The source of what runs, where several threads ask for it."""

import ast
import gc
import os
import runpy
import signal
import sys
import threading
import time
import warnings

from warmstore import source_code


class Layered:
    """Large enough for the garbage collector to come by while it is parsed."""

    def first(self, x):
        return [(x, y, z) for y in range(3) for z in range(y) if x > y > z]

    def second(self, x):
        return {y: {z: (x + y, x * z) for z in range(y)} for y in range(x)}


def test_threads_that_parse_at_once():
    """The garbage collector lets other threads run in the middle of what the parser of Python 3.11 counts."""
    failures = []

    def let_others_run(*_):
        time.sleep(0)

    def work():
        try:
            for _ in range(20):
                assert "def second" in source_code.source_of(Layered)
                assert len(source_code.parse("[" + "1," * 50 + "]").body) == 1
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    before = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_others_run)
    assert not failures
    assert gc.isenabled()


def test_threads_that_read_files_leave_warnings_as_they_were(tmp_path):
    functions = []
    for number in range(80):
        path = tmp_path / f"module{number}.py"
        path.write_text(f"def made(x):\n    return x + {number}\n" * 20)
        functions.append(runpy.run_path(str(path))["made"])
    found = []
    threads = [
        threading.Thread(target=lambda part: found.extend(map(source_code.source_of, part)), args=(functions[at::4],))
        for at in range(4)
    ]
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        after, warnings.filters[:] = list(warnings.filters), before
    assert after == before
    assert len(found) == 80
    assert all(found)


def test_a_fork_while_another_thread_parses():
    parsing = threading.Event()

    def parse():
        with source_code._undisturbed():
            parsing.set()
            time.sleep(0.2)

    thread = threading.Thread(target=parse)
    thread.start()
    parsing.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(30)
        source_code.parse("1")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        assert isinstance(source_code.tree_of(Layered), ast.Module)
        assert not gc.isenabled()
    finally:
        gc.enable()
