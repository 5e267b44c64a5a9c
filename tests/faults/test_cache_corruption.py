"""A small feature cache damaged byte by byte, its key index included: an exact output, a miss or a typed error.

The key index is derived: whatever it says, there is no error, and at worst a miss. `make torture` takes every byte
(`corruption_campaign.py`).
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.damage import Damage, cuts, fills, flips, look_at, pairs_of_bits, swapped_words
from tests.faults.damaged_caches import FRESH, IDS, opened, output, wrong_answer
from tests.faults.damaged_caches import make_features as make
from tests.slow import either, thinned

from warmstore.errors import WarmstoreError
from warmstore.storage import history

pytestmark = pytest.mark.forks

FILES = ["json", "log", "chunk", "index", "direct"]
DERIVED = ("index", "direct")


def file_of(path: Path, file: str) -> Path:
    if file in DERIVED:
        (found,) = path.glob(f"keys-*.{file}")
        return found
    return path / {"json": "store.json", "log": "g0001/log", "chunk": "g0001/000000.arrow"}[file]


def test_all_files_are_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "s")
    present = {one for one in path.rglob("*") if one.is_file() and one.stat().st_size}
    present = {one for one in present if one.suffix != ".copy"}  # of those test_every_byte.py has more
    present = {one for one in present if one.name != history.NAME}  # no lookup reads it; see tests/storage
    assert present == {file_of(path, file) for file in FILES}


def wrong(path: Path, *, derived: bool, scratch: Path) -> str:
    """What is wrong with a damaged cache: for a reader, and for a writer of a copy."""
    places = list(range(len(IDS)))
    errors = contextlib.nullcontext() if derived else contextlib.suppress(WarmstoreError)
    with errors:
        cache = opened(path.parent, read_only=True)
        problem, _ = wrong_answer(cache, IDS, places)
        cache.close()
        if problem:
            return problem
    with errors:
        cache = opened(path.parent, read_only=True)
        for at, one in enumerate(IDS):
            with errors:
                problem, _ = wrong_answer(cache, [one], [at])
                if problem:
                    return problem
        cache.close()
    shutil.copytree(path, scratch / "net")
    with errors:
        cache = opened(scratch)
        with contextlib.closing(cache):
            fresh = [100 + at for at in range(len(FRESH))]
            cache.put_batch(FRESH, output(fresh))
            cache.flush()
            problem, missing = wrong_answer(cache, IDS, places)
            if not problem:
                problem, fresh_missing = wrong_answer(cache, FRESH, fresh)
                # What was missed is put again, as a module would, and is found from then on.
                again = [IDS[at] for at in missing] + [FRESH[at] for at in fresh_missing]
                numbers = missing + [fresh[at] for at in fresh_missing]
                if again and not problem:
                    cache.put_batch(again, output(numbers))
                    problem, _ = wrong_answer(cache, again, numbers)
            if problem:
                return f"{problem}, to a writer"
        cache = opened(scratch, read_only=True)
        problem, _ = wrong_answer(cache, IDS + FRESH, places + fresh)
        cache.close()
        return problem and f"{problem}, after a writer"
    return ""


def look(path: Path, file: str, damages: Iterable[Damage]) -> int:
    scratch = path.parent / "scratch"
    return look_at(
        file_of(path, file), damages, lambda: wrong(path, derived=file in DERIVED, scratch=scratch), scratch=scratch
    )


def words_in_use(data: bytes) -> list[int]:
    """The bytes of all words that are not zero, and one word in fifty of the others."""
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64) != 0
    words[::50] = True
    return [8 * word + byte for word in np.flatnonzero(words).tolist() for byte in range(8)]


@pytest.mark.parametrize("file", thinned(3, FILES))
def test_bytes_flipped(tmp_path: Path, file: str) -> None:
    path = make(tmp_path / "s")
    data = file_of(path, file).read_bytes()
    places = words_in_use(data) if file in DERIVED else range(len(data))
    assert look(path, file, flips(data, list(places)[:: either(6, 1) * (61 if file == "chunk" else 17)])) > 5


def lengths(data: bytes, step: int) -> list[int]:
    """Lengths all over a file, and around whole pages."""
    pages = [at + more for at in range(0, len(data), 4096) for more in (-1, 0, 1, 8)]
    return sorted({*range(0, len(data), step), *(at for at in pages if 0 <= at < len(data))})


@pytest.mark.parametrize("file", thinned(3, FILES))
def test_cut(tmp_path: Path, file: str) -> None:
    path = make(tmp_path / "s")
    data = file_of(path, file).read_bytes()
    assert look(path, file, cuts(data, lengths(data, max(7, len(data) // 40))[:: either(8, 2)]))


@pytest.mark.parametrize("file", thinned(3, FILES))
def test_garbage(tmp_path: Path, file: str) -> None:
    path = make(tmp_path / "s")
    data = file_of(path, file).read_bytes()
    rng = np.random.default_rng(1)

    def damages() -> Iterator[Damage]:
        yield from fills(data, 512, max(64, len(data) // either(2, 8)))
        yield from pairs_of_bits(data, either(4, 10), rng)
        yield from swapped_words(data, either(4, 10), rng)

    assert look(path, file, damages())


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("files", [("index",), ("direct",), ("index", "direct")])
def test_the_key_index_of_another_cache_is_built_anew(tmp_path: Path, files: tuple[str, ...], read_only: bool) -> None:
    """Or of none, or of this one as it was before its last batch: then nothing is missing."""
    path, other = make(tmp_path / "s"), make(tmp_path / "other", 50)
    shutil.copytree(path, tmp_path / "earlier" / "net")
    with contextlib.closing(opened(path.parent)) as cache:
        cache.put_batch(FRESH, output([100, 101, 102]))
    for source in (None, other, tmp_path / "earlier" / "net"):
        shutil.copytree(path, tmp_path / "copy" / "net")
        for file in files:
            target = file_of(tmp_path / "copy" / "net", file)
            target.unlink()
            if source is not None:
                shutil.copy(file_of(source, file), target)
        with contextlib.closing(opened(tmp_path / "copy", read_only=read_only)) as cache:
            problem, missing = wrong_answer(cache, IDS + FRESH, [*range(len(IDS)), 100, 101, 102])
            assert not problem
            # One file alone cannot tell that it is older than the other: its last ids are misses.
            assert not missing or (files == ("direct",) and source is not None), source
        shutil.rmtree(tmp_path / "copy")


def test_the_check_itself_would_see_a_wrong_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.features.keyed import cache_reader

    path = make(tmp_path / "s")
    data = file_of(path, "direct").read_bytes()
    real = cache_reader.CacheReader.read_all

    def trusting(self: Any, keys: Any) -> Any:
        keys = type(keys).of_halves(
            self.store._gatherer.read_rows(["key"], np.maximum(self.keyed.index.lookup(keys), 0))[0].data.view(
                np.uint64
            )
        )
        return real(self, keys)

    monkeypatch.setattr(cache_reader.CacheReader, "read_all", trusting)
    with pytest.raises(AssertionError, match=r"are \{'features'"):
        look(path, "direct", flips(data, [4096, 4104], range(3)))
