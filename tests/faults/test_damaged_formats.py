"""Damage at rest in every format: some of what `make torture` judges, and that its judges see what is wrong."""

import os
import signal
from pathlib import Path

import pytest
from tests.faults import judging
from tests.faults.corruption_campaign import (
    EXACT,
    REPORTED,
    SEVERAL_BYTES,
    Damage,
    Lost,
    Subject,
    Wrong,
    campaign,
    damages_of,
)
from tests.faults.damaged_caches import SUBJECTS as CACHES
from tests.faults.damaged_remotes import SUBJECTS as REMOTES
from tests.faults.damaged_stores import SUBJECTS as STORES
from tests.slow import either, thinned

pytestmark = pytest.mark.forks


@pytest.mark.parametrize("subject", thinned(4, [*STORES, *CACHES]), ids=lambda subject: subject.name)
def test_some_damages(subject: Subject) -> None:
    found = campaign(subject, 0, either(10, 200), seed=1)
    assert not found.failures, found.failures[0]
    assert found.exact + found.reported == found.damages > 0


@pytest.mark.parametrize("subject", thinned(2, REMOTES), ids=lambda subject: subject.name)
def test_some_damages_of_remotes(subject: Subject) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    found = campaign(subject, 0, either(6, 200), seed=1)
    assert not found.failures, found.failures[0]
    assert found.exact + found.reported == found.damages > 0


@pytest.mark.parametrize("subject", thinned(6, [*STORES, *CACHES]), ids=lambda subject: subject.name)
def test_files_that_are_gone_or_of_another_store(subject: Subject) -> None:
    found = campaign(subject, 0, 100, chosen=lambda damage: damage.how in ("removed", "swapped"))
    assert not found.failures, found.failures[0]
    assert found.damages == found.of


@pytest.mark.parametrize("subject", thinned(4, [*STORES, *CACHES]), ids=lambda subject: subject.name)
def test_some_runs_and_pairs(subject: Subject) -> None:
    found = campaign(subject, 0, either(10, 200), chosen=lambda damage: damage.how in SEVERAL_BYTES)
    assert not found.failures, found.failures[0]
    assert found.exact + found.reported == found.damages > 0


def test_each_byte_and_length_is_damaged() -> None:
    damages = [one for one in damages_of("file", b"abc", b"xyz", seed=0) if one.how not in SEVERAL_BYTES]
    assert [(damage.how, damage.at) for damage in damages] == [
        *((how, at) for at in range(3) for how in ("bit", "inverted")),
        *(("cut", length) for length in range(3)),
        ("removed", 0),
        ("swapped", 0),
    ]
    done = [damage.of(b"abc", b"xyz") for damage in damages]
    assert done[6:] == [b"", b"a", b"ab", None, b"xyz"]
    assert len({data for data in done if data is not None}) == len(done) - 1
    assert b"abc" not in done
    assert "swapped" not in {damage.how for damage in damages_of("file", b"abc", b"abc", seed=0)}


def test_runs_and_pairs_are_damaged_as_they_say() -> None:
    data = bytes(range(1, 201))
    damages = [one for one in damages_of("file", data, None, seed=0) if one.how in SEVERAL_BYTES]
    assert len({str(damage) for damage in damages}) == len(damages)
    runs = {(damage.how, damage.at, damage.length) for damage in damages if damage.how not in ("bits", "words")}
    lengths = {0: (8, 64, 200), 64: (8, 64, 136), 128: (8, 64, 72), 192: (8,)}
    assert runs == {
        (how, at, length) for how in ("zeros", "ones", "letters") for at, those in lengths.items() for length in those
    }
    for damage in damages:
        done = damage.of(data, b"")
        assert done is not None
        assert len(done) == len(data)
        wrong = {at for at in range(len(data)) if done[at] != data[at]}
        touched = {at for place in damage.touched(len(data)) for at in place}
        assert wrong
        assert wrong <= touched
        if damage.how == "bits":
            assert sum((one ^ two).bit_count() for one, two in zip(done, data, strict=True)) == 2
        elif damage.how == "words":
            assert sorted(done) == sorted(data)
            assert len(touched) == 16
        else:
            assert {done[at] for at in touched} == {{"zeros": 0, "ones": 0xFF, "letters": 0x41}[damage.how]}
    assert {"bits", "words"} < {damage.how for damage in damages}


class Fragile:
    """A file of which nobody notices damage, and whose judge does what the damaged byte says."""

    name = "fragile"

    def make(self, root: Path, *, other: bool) -> None:
        (root / "file").write_bytes(b"well")

    def files(self, root: Path) -> dict[str, Path]:
        return {"file": root / "file"}

    def judge(self, root: Path, damage: Damage) -> str:
        if not (root / "file").exists():
            raise Lost("it is gone")
        data = (root / "file").read_bytes()
        if damage.how == "cut" and damage.at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if damage.how == "cut" and damage.at == 1:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # without the traceback of the suite
            signal.alarm(1)
            signal.pause()
        if damage.how == "inverted":
            raise Wrong(f"it is {data!r}")
        if damage.how == "cut" and damage.at == 2:
            raise KeyError(damage.at)
        return EXACT if data == b"well" else REPORTED


def test_what_is_lost_wrong_crashed_and_hung_is_counted() -> None:
    found = campaign(Fragile(), 0, 100)
    counts = found.exact, found.reported, found.wrong, found.lost, found.crashes, found.hangs, found.others
    assert counts == (0, 9, 4, 1, 1, 1, 1)
    assert found.damages == found.of == sum(counts)
    assert len(found.failures) == 8
    assert sorted(line.split(":")[0] for line in found.failures if judging.HANG in line or judging.CRASH in line) == [
        "fragile, file, cut 0",
        "fragile, file, cut 1",
    ]


def test_parts_are_all_damages_once() -> None:
    whole = campaign(Fragile(), 0, 100, chosen=lambda damage: damage.how == "inverted")
    parts = [campaign(Fragile(), at, at + 3, chosen=lambda damage: damage.how == "inverted") for at in (0, 3)]
    assert sorted(failure.split(":")[0] for part in parts for failure in part.failures) == sorted(
        failure.split(":")[0] for failure in whole.failures
    )
    assert [part.damages for part in parts] == [3, 1]
