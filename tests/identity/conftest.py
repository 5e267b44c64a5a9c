"""The server of fresh processes, and a summary of what the cases came to."""

import collections
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.identity.cases import Verdict
from tests.identity.server import FreshInterpreters, Server

_KEY = "identity"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Forks a process for each run."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def reseeded() -> Iterator[Server]:
    """The same, with another seed of hashes."""
    with Server(hash_seed="4711") as running:
        yield running


@pytest.fixture(scope="session")
def interpreters() -> FreshInterpreters:
    """Starts an interpreter for each run."""
    return FreshInterpreters()


@pytest.fixture(scope="session")
def compilers() -> FreshInterpreters:
    """Starts an interpreter for each run of what is really compiled, as compilers have threads of their own."""
    return FreshInterpreters(hash_seed="0")


def one_in(count: int, name: str, shift: int = 0) -> bool:
    """Whether a case is in a sample of one in so many, which is the same everywhere."""
    return zlib.crc32(name.encode()) % count == shift


def without_interpreters() -> Any:
    """In the place of cases that run in interpreters of their own."""
    return pytest.param(None, marks=pytest.mark.skip(reason="an interpreter for each run; run with --fresh"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many cases came to which verdict, by kind of edit, by place, by time and by system."""
    rows = [
        dict(said[1])
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for said in getattr(report, "user_properties", [])
        if said[0] == _KEY
    ]
    if not rows:
        return
    verdicts = [verdict.value for verdict in Verdict if any(row["verdict"] == verdict.value for row in rows)]
    terminalreporter.section("identity")
    for name in ("system", "when", "group", "place"):
        counts = collections.Counter((row[name], row["verdict"]) for row in rows if row[name])
        if len({value for value, _ in counts}) < 2:
            continue
        terminalreporter.line(f"{name:42}" + "".join(f"{verdict:>29}"[-29:] for verdict in verdicts))
        for value in dict.fromkeys(row[name] for row in rows if row[name]):
            terminalreporter.line(
                f"{value:42}" + "".join(f"{counts[value, verdict] or '':>29}" for verdict in verdicts)
            )
        terminalreporter.line("")
    failed = collections.Counter((row["edit"], row["verdict"]) for row in rows if row["failed"])
    for (edit, verdict), count in sorted(failed.items(), key=lambda one: (one[0][1], -one[1])):
        systems = ", ".join(sorted({row["system"] for row in rows if row["failed"] and row["edit"] == edit}))
        terminalreporter.line(f"{verdict:30} {count:4}  {edit} ({systems})")
