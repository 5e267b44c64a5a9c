"""Bytes of every file of a small store flipped, every file cut at many lengths, every file removed.

The store has two writers' chunks, a merge, updates, an update of several batches, deletes, absent values, and chunks
with and without a footer. What stands in files other than chunks is always exact, since each has a copy; so is what
the headers of batches say, in which one wrong byte is searched. Values in chunks are exact or Damaged.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child, well
from tests.faults.damage import DEEP, QUICK, Damage, cuts, different, files_of, flips, headers_of, look_at, wrong
from tests.faults.stories import Story, merged
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import Damaged, NotAStore

pytestmark = pytest.mark.forks

OTHERS = ["store.json", "store.json.copy", "log", "log.copy", "numbers", "numbers.copy"]
CHUNKS = ["2", "3", "4"]
UNSEALED = "4"
EVERY = pytest.mark.parametrize("every", [67, pytest.param(7, marks=pytest.mark.slow)])
"""Which bytes and lengths: every 67th in the short run, and with --slow every 7th. `make torture` takes all of them."""


@pytest.fixture
def story(tmp_path: Path) -> Story:
    made = merged(tmp_path / "s")
    assert list(files_of(made)) == [*OTHERS, *CHUNKS]
    return made


def look(
    story: Story, file: str, damages: Iterable[Damage], *, depth: int = QUICK, exact: bool, noticed: bool = False
) -> int:
    scratch = story.path.with_name("scratch")
    return look_at(
        files_of(story)[file],
        damages,
        lambda: wrong(story, [story.entries], depth=depth, scratch=scratch, exact=exact, noticed=noticed),
        scratch=scratch,
    )


@EVERY
@pytest.mark.parametrize("file", thinned(2, OTHERS))
def test_every_byte_of_what_has_a_copy(story: Story, file: str, every: int) -> None:
    data = files_of(story)[file].read_bytes()
    places = range(0, len(data), every)
    assert look(story, file, flips(data, places), exact=True, noticed=True) == len(places)
    assert look(story, file, flips(data, places[::11]), exact=True, depth=DEEP)


@EVERY
@pytest.mark.parametrize("file", thinned(2, OTHERS))
def test_every_length_of_what_has_a_copy(story: Story, file: str, every: int) -> None:
    data = files_of(story)[file].read_bytes()
    lengths = range(0, len(data), every)
    assert look(story, file, cuts(data, lengths), exact=True) == len(lengths)
    assert look(story, file, cuts(data, lengths[::37]), exact=True, depth=DEEP)


@pytest.mark.parametrize("file", OTHERS)
def test_what_has_a_copy_removed(story: Story, file: str) -> None:
    assert look(story, file, [("removed", None)], exact=True, noticed=True, depth=DEEP) == 1


@EVERY
@pytest.mark.parametrize("file", CHUNKS)
def test_every_byte_of_headers(story: Story, file: str, every: int) -> None:
    """They are read without the wrong byte, and verify says so."""
    data = files_of(story)[file].read_bytes()
    headers = headers_of(story, file)
    assert len(headers) >= 496
    places = headers[::every]
    assert look(story, file, flips(data, places), exact=True, noticed=True) == len(places)
    assert look(story, file, flips(data, places[::61]), exact=True, depth=DEEP)


@EVERY
@pytest.mark.parametrize("file", ["2", pytest.param("3", marks=pytest.mark.slow), UNSEALED])
def test_every_byte_of_chunks(story: Story, file: str, every: int) -> None:
    """Before the first batch of a chunk without a footer stand bytes that nobody reads, and no hash is of."""
    data = files_of(story)[file].read_bytes()
    headers = headers_of(story, file)
    first = headers[0] if file == UNSEALED else 0
    places = [at for at in range(first, len(data)) if at not in set(headers)][::every]
    assert look(story, file, flips(data, places), exact=False, noticed=True) == len(places)
    assert look(story, file, flips(data, range(0, first, every)), exact=True) == -(-first // every)
    assert look(story, file, flips(data, places[::67]), exact=False, depth=DEEP)


@EVERY
@pytest.mark.parametrize("file", CHUNKS)
def test_every_length_of_chunks(story: Story, file: str, every: int) -> None:
    data = files_of(story)[file].read_bytes()
    assert look(story, file, cuts(data, range(0, len(data), 7 * every)), exact=False, noticed=True)
    assert look(story, file, cuts(data, range(1, len(data), either(997, 233))), exact=False, noticed=True, depth=DEEP)


@pytest.mark.parametrize("file", CHUNKS)
def test_a_chunk_removed(story: Story, file: str) -> None:
    assert look(story, file, [("removed", None)], exact=False, noticed=True, depth=DEEP) == 1


def test_a_file_and_its_copy_removed(story: Story) -> None:
    """What is missing is named."""
    files = files_of(story)
    for name, error in (("store.json", NotAStore), ("log", NotAStore), ("numbers", Damaged)):
        kept = {path: path.read_bytes() for path in (files[name], files[f"{name}.copy"])}
        for path in kept:
            path.unlink()
        for mode in ("r", "a"):
            with pytest.raises(error, match=name):
                ws.RecordStore.open(story.path, mode)  # type: ignore[arg-type]
        for path, data in kept.items():
            path.write_bytes(data)
    with ws.RecordStore.open(story.path) as store:
        assert store.verify(progress=False).ok


@pytest.mark.parametrize("file", ["store.json", "log", "numbers"])
def test_a_file_and_its_copy_damaged(story: Story, file: str) -> None:
    """In two bytes of each, so that no search helps: typed errors, never another value."""
    files = files_of(story)
    data = files[file].read_bytes()
    other = files[f"{file}.copy"].read_bytes()
    for at in range(0, len(data) - 1, either(173, 43)):
        for path, content in ((files[file], data), (files[f"{file}.copy"], other)):
            damaged = bytearray(content)
            damaged[at] ^= 1
            damaged[at + 1] ^= 2
            path.write_bytes(damaged)
        assert not wrong(story, [story.entries], depth=QUICK, scratch=story.path.with_name("scratch"))


def test_opened_without_what_is_damaged_twice(story: Story) -> None:
    """Salvage keeps all rows before the damaged edit, and a repair makes a whole store of it."""
    files = files_of(story)
    for name in ("numbers", "numbers.copy"):
        data = bytearray(files[name].read_bytes())
        data[-1] ^= 1
        files[name].write_bytes(data)
    with pytest.raises(Damaged, match="salvage=True"):
        ws.RecordStore.open(story.path)
    with ws.RecordStore.open(story.path, "a", salvage=True) as store:
        report = store.verify(repair=True, progress=False)
        assert report.lost
        assert report.repaired
    with ws.RecordStore.open(story.path) as store:
        assert store.verify(progress=False).ok
        rows = [*story.at(14), story.value(8)]  # before the last update, and after it a batch
        assert different(store, rows) == ("", set())


def opened_and_cut(story: Story, file: str, length: int, ask: Callable[[ws.RecordStore], Any]) -> list[Any]:
    """What a store says that was open, and had read nothing, when a chunk was cut."""
    path = files_of(story)[file]

    def work(say: Callable[[Any], None]) -> None:
        with ws.RecordStore.open(story.path) as store:
            os.truncate(path, length)
            try:
                say(ask(store))
            except Damaged as error:
                say(str(error))

    return well(in_child(work))


ASKED: dict[str, Callable[[ws.RecordStore], Any]] = {
    "gather": lambda store: store.gather(slice(None)),
    "one": lambda store: store[0],
    "packed": lambda store: store.gather(slice(None), ["text"], packed=True),
    "present": lambda store: store.present("text").tolist(),
    "arrow": lambda store: store.to_arrow().num_rows,
    "verify": lambda store: store.verify(progress=False).ok,
}


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("length", thinned(3, [1, 1500, 2000, 0]))
def test_a_chunk_cut_while_it_is_open(story: Story, what: str, length: int) -> None:
    """Rows that were not read before are Damaged, and no signal."""
    for file in CHUNKS:
        kept = story.path.with_name(f"kept {file}")
        shutil.copytree(story.path, kept)
        (said,) = opened_and_cut(story, file, length, ASKED[what])
        if what == "verify":
            assert said is False
        elif isinstance(said, str):
            assert "restore it from a copy" in said
        elif what == "one":
            assert said["number"] == story.records[0]["number"]
        elif what in ("gather", "packed"):
            assert what == "packed" or said["number"].tolist() == [one["number"] for one in story.records]
        shutil.rmtree(story.path)
        kept.rename(story.path)


def test_the_check_itself_would_see_a_wrong_value(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.records.read import gather

    data = files_of(story)["2"].read_bytes()
    monkeypatch.setattr(gather.Gatherer, "_fresh", lambda *arguments: None)
    body = headers_of(story, "2")[-1] + 1
    with pytest.raises(AssertionError, match=r"of record \d"):
        look(story, "2", flips(data, range(body, body + 64)), exact=False)
