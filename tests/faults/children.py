"""Real child processes, forked from this one so that they need no imports: to be killed, to crash, to lose rights."""

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import warmstore as ws
from warmstore.records.format.fields import numpy_dtype

FIELDS: dict[str, Any] = {
    "number": ws.Array("int64"),
    "image": ws.Array("uint8", (3, 2)),
    "half": ws.Array("bfloat16", (2,)),
    "points": ws.Ragged("float32", ndim=2),
    "blob": ws.Bytes(),
    "text": ws.Text(),
    "tag": ws.Json(),
    "nothing": ws.Array("float64", (0,)),
}

BFLOAT16 = numpy_dtype("bfloat16")
_forking = threading.Lock()


def record(number: int) -> dict[str, Any]:
    """Record `number` of every test store: its values follow from the number alone."""
    rng = np.random.default_rng(number)
    return {
        "number": number,
        "image": rng.integers(0, 256, (3, 2), np.uint8),
        "half": rng.integers(0, 1 << 16, 2, np.uint16).view(BFLOAT16),
        "points": rng.random((number % 3, 2), np.float32),
        "blob": rng.bytes(number % 5),
        "text": "é" * (number % 4),
        "tag": {"number": number, "none": None},
        "nothing": np.zeros(0),
    }


def columns(numbers: Any) -> dict[str, list[Any]]:
    """Records as `extend` takes them."""
    records = [record(number) for number in numbers]
    return {name: [one[name] for one in records] for name in FIELDS}


def same(one: Any, other: Any) -> bool:
    """Whether two values of a field are equal bit for bit, dtype and shape included."""
    if isinstance(one, np.ndarray | np.generic):
        one, other = np.asarray(one), np.asarray(other)
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, memoryview):
        return bytes(one) == bytes(other)
    return type(one) is type(other) and bool(one == other)


def check(store: Any, numbers: Any) -> None:
    """Assert that a store holds exactly these records, in this order."""
    numbers = list(numbers)
    assert len(store) == len(numbers)
    values = store[:]
    assert values["number"].tolist() == numbers
    for at, number in enumerate(numbers):
        for name, expected in record(number).items():
            if name != "number":
                assert same(values[name][at], expected), (name, at)


@dataclass(frozen=True)
class Ended:
    """How a child ended: `signal` that killed it or 0, `code` it exited with, `said` through its `say`, `error`."""

    signal: int
    code: int
    said: list[Any]
    error: str


def in_child(work: Callable[[Callable[[Any], None]], None], user: int | None = None) -> Ended:
    """Fork, run `work(say)` in the child, and return how it ended.

    What the child says is not lost when it is killed. It ends without any exit handlers, like a killed one.
    """
    return begun(work, user)()


def begun(work: Callable[[Callable[[Any], None]], None], user: int | None = None) -> Callable[[], Ended]:
    """`in_child` for a child that runs beside this process, until what is returned is called."""
    with _forking:  # else a child of another thread would have this one's pipe too, and keep it from ending
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside pyarrow's idle threads is what we mean
            child = os.fork()
        if not child:
            os.close(reading)
            _forking.release()  # a child may have children
            _run(work, writing, user)
        os.close(writing)
    return partial(_ended, child, reading)


def _ended(child: int, reading: int) -> Ended:
    with open(reading, "rb") as pipe:
        told = []
        while True:
            try:
                told.append(pickle.load(pipe))
            except (EOFError, pickle.UnpicklingError):
                break
    status = os.waitpid(child, 0)[1]
    died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
    errors = [value for kind, value in told if kind == "error"]
    return Ended(died, code, [value for kind, value in told if kind == "said"], "".join(errors))


def well(ended: Ended) -> list[Any]:
    """What a child said that must have ended well."""
    assert not ended.signal, signal.Signals(ended.signal).name
    assert not ended.error, ended.error
    assert ended.code == 0
    return ended.said


def _run(work: Callable[[Callable[[Any], None]], None], writing: int, user: int | None) -> None:
    def tell(kind: str, value: Any) -> None:
        os.write(writing, pickle.dumps((kind, value)))  # one write: whole in the pipe or not at all

    code = 1
    try:
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # as in a DataLoader's workers: a fork has none of OpenMP's threads, and waits
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        work(lambda value: tell("said", value))
        code = 0
    except BaseException:
        tell("error", traceback.format_exc()[-3000:])
    finally:
        sys.stdout.flush()
        os._exit(code)
