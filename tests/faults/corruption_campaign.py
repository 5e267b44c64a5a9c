"""Damage at rest: each file of each format flipped, cut, overwritten, removed, and swapped with another store's.

Every byte has two damages, one bit that the seed draws and all bits, and every length is a cut. Runs of bytes become
zeros, ones or letters; pairs of bits are flipped and pairs of words exchanged, which sums do not see. A judge in a
forked child then uses what is there as a program does. What it reads must be exact, or be reported as the format
promises: an error, a miss, a value that is computed again. What is not damaged must still be there.
"""

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from tests.faults.judging import CRASH, HANG, judge_all
from tests.faults.power_campaign import SHARED, spare_syncs
from tests.warm import search_for_patches, spare_searches

import warmstore as ws
from warmstore.errors import WarmstoreError

_BATCH = 64
"""Damages that one child judges."""
_PAGE = 4096
_DENSE = 1 << 16
"""Bytes of a file up to which each byte is damaged; of larger files, which are mostly zeros, what is in use."""
_FILLS = {"zeros": b"\0", "ones": b"\xff", "letters": b"A"}
_PAIRS = {"bits": 1, "words": 8}
"""Bytes of each of the two."""
SEVERAL_BYTES = *_FILLS, *_PAIRS
"""Damages of runs of bytes, and of pairs."""
_LENGTHS = 8, 64, 512, 1 << 40
"""Of runs of bytes; the last one is to the end of the file."""
_APART = 64
"""Bytes from one run to the next."""
_ROUNDS = {"cut": 1, "inverted": 2, **dict.fromkeys(SEVERAL_BYTES, 3)}
"""What comes after one wrong bit in every byte, and files that are removed and swapped."""
EXACT, REPORTED = "exact", "reported"


class Wrong(AssertionError):
    """A value that differs from what was stored."""


class Lost(AssertionError):
    """Something that was acknowledged and not damaged is missing, or a damage is not reported."""


class Subject(Protocol):
    """What is damaged, and what a program must find then."""

    name: str

    def make(self, root: Path, *, other: bool) -> None:
        """Make it in an empty folder; or another one of the same kind with other values."""

    def files(self, root: Path) -> dict[str, Path]:
        """Its files by what they are. Another one of the same kind has files of the same names."""

    def judge(self, root: Path, damage: "Damage") -> str:
        """Use what is there. Returns EXACT if the damage changed nothing, else REPORTED.

        Raises:
            Wrong, Lost: the format promises more.
        """


@dataclass(frozen=True)
class Damage:
    """A damage of a file.

    how: "bit", "inverted", "cut", "removed", "swapped"; "zeros", "ones", "letters"; or two "bits" or "words".
    at: the byte, or the length of a cut. length: bytes that are overwritten. second: the other byte of a pair.
    """

    file: str
    how: str
    at: int = 0
    bit: int = 0
    length: int = 1
    second: int = 0
    second_bit: int = 0

    def __str__(self) -> str:
        if self.how in _FILLS:
            return f"{self.file}, {self.length} {self.how} at {self.at}"
        if self.how == "bits":
            return f"{self.file}, bit {self.bit} of {self.at} and bit {self.second_bit} of {self.second}"
        if self.how == "words":
            return f"{self.file}, words at {self.at} and {self.second}"
        bit = f"bit {self.bit} of " if self.how == "bit" else ""
        return f"{self.file}, {bit}{self.how} {self.at}"

    @property
    def is_one_byte(self) -> bool:
        return self.how in ("bit", "inverted")

    def touched(self, size: int) -> list[range]:
        """The bytes that are damaged of a file of `size` bytes."""
        if self.how in ("removed", "swapped"):
            return [range(size)]
        if self.how == "cut":
            return [range(self.at, size)]
        if self.how in _PAIRS:
            return [range(at, at + _PAIRS[self.how]) for at in (self.at, self.second)]
        return [range(self.at, self.at + self.length)]

    def of(self, data: bytes, other: bytes) -> bytes | None:
        """The damaged bytes; None for a removed file."""
        if self.how == "removed":
            return None
        if self.how == "swapped":
            return other
        if self.how == "cut":
            return data[: self.at]
        changed = bytearray(data)
        if self.how in _FILLS:
            changed[self.at : self.at + self.length] = _FILLS[self.how] * self.length
        elif self.how == "words":
            for to, of in ((self.at, self.second), (self.second, self.at)):
                changed[to : to + 8] = data[of : of + 8]
        else:
            changed[self.at] ^= 0xFF if self.how == "inverted" else 1 << self.bit
            if self.how == "bits":
                changed[self.second] ^= 1 << self.second_bit
        return bytes(changed)


def put_back(folder: Path, damage: Damage) -> bool:
    """Put the copy of store.json in the place of another store's, which must have been refused. Returns whether."""
    if damage.how != "swapped" or damage.file != "store.json":
        return False
    try:
        ws.RecordStore.open(folder).close()
    except WarmstoreError:
        (copy,) = folder.glob("g*/store.json.copy")
        shutil.copyfile(copy, folder / "store.json")
        return True
    raise Wrong("a store was opened with the store.json of another one")


@dataclass
class CorruptionResult:
    """What came of a subject: `of` all damages those that were judged, and how they ended."""

    subject: str
    of: int = 0
    damages: int = 0
    exact: int = 0
    reported: int = 0
    lost: int = 0
    wrong: int = 0
    crashes: int = 0
    hangs: int = 0
    others: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str, why: str) -> None:
        kinds = {HANG: "hangs", CRASH: "crashes"}
        kind = next((kinds[start] for start in kinds if why.startswith(start)), None)
        if kind is None:
            last = why.strip().splitlines()[-1]
            kind = "wrong" if f"{Wrong.__name__}:" in last else "lost" if f"{Lost.__name__}:" in last else "others"
        setattr(self, kind, getattr(self, kind) + 1)
        self.failures.append(f"{self.subject}, {what}: {why}")


class Disk:
    """A folder that is put back as it was before each damage. Its files are kept without their blocks of zeros."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders = [path for path in sorted(root.rglob("*")) if path.is_dir()]
        self._files = {path: _blocks(path.read_bytes()) for path in root.rglob("*") if path.is_file()}

    def restore(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        for folder in self._folders:
            folder.mkdir()
        for path, (size, blocks) in self._files.items():
            with open(path, "wb") as file:
                for at, block in blocks:
                    file.seek(at)
                    file.write(block)
                file.truncate(size)


def _blocks(data: bytes) -> tuple[int, list[tuple[int, bytes]]]:
    pages = ((at, data[at : at + _PAGE]) for at in range(0, len(data), _PAGE))
    return len(data), [(at, page) for at, page in pages if page.strip(b"\0")]


def _drawn(seed: int, damage: Damage) -> bytes:
    """A place in the order, by the damage alone: files with times in them have some bytes more or less each time."""
    return hashlib.blake2b(f"{seed} {damage}".encode(), digest_size=8).digest()


def damages_of(file: str, data: bytes, other: bytes | None, seed: int) -> Iterator[Damage]:
    """All damages of a file; `other`: that of another store, if there is one."""
    rng = random.Random(f"{seed} {file}")
    places, lengths = _places(data)
    for at in places:
        yield Damage(file, "bit", at, rng.randrange(8))
        yield Damage(file, "inverted", at)
    for length in lengths:
        yield Damage(file, "cut", length)
    yield Damage(file, "removed")
    if other is not None and other != data:
        yield Damage(file, "swapped")
    yield from dict.fromkeys([*_runs(file, data, places[::_APART]), *_pairs(file, data, places, rng)])


def _runs(file: str, data: bytes, places: Sequence[int]) -> Iterator[Damage]:
    for at in places:
        for length in _LENGTHS:
            there = data[at : at + length]
            for how, fill in _FILLS.items():
                if there != fill * len(there):
                    yield Damage(file, how, at, length=len(there))


def _pairs(file: str, data: bytes, places: Sequence[int], rng: random.Random) -> Iterator[Damage]:
    """As many pairs of bits, and of words, as there are words."""
    for _ in range(0, len(places), 8):
        first, second = rng.sample(range(8 * len(places)), 2)
        yield Damage(file, "bits", places[first // 8], first % 8, second=places[second // 8], second_bit=second % 8)
        first, second = (rng.choice(places) // 8 * 8 for _ in range(2))
        if max(first, second) + 8 <= len(data) and data[first : first + 8] != data[second : second + 8]:
            yield Damage(file, "words", first, second=second)


def _places(data: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """The bytes and the lengths of a file to damage: of a large one, words that are not zero and a few others."""
    if len(data) <= _DENSE:
        return range(len(data)), range(len(data))
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64) != 0
    words[:: max(1, len(words) // 200)] = True
    used = [8 * word + byte for word in np.flatnonzero(words).tolist() for byte in range(8)]
    return used, sorted({*used[::8], *range(0, len(data), max(_PAGE, len(data) // 200))})


def campaign(
    subject: Subject, first: int, last: int, seed: int = 0, chosen: Callable[[Damage], bool] = lambda _: True
) -> CorruptionResult:
    """Judge the damages `first` to `last` of a subject, in an order that the seed gives."""
    result = CorruptionResult(subject.name)
    parent = SHARED if SHARED.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="warmstore-damage-", dir=parent) as name:
        root, others = Path(name) / "root", Path(name) / "other"
        for folder in (root, others):
            folder.mkdir()
            subject.make(folder, other=folder == others)
        originals = {file: path.read_bytes() for file, path in subject.files(root).items()}
        foreign = {file: path.read_bytes() for file, path in subject.files(others).items()}
        damages = [
            damage
            for file, data in originals.items()
            for damage in damages_of(file, data, foreign.get(file), seed)
            if chosen(damage)
        ]
        damages.sort(key=lambda damage: (_ROUNDS.get(damage.how, 0), _drawn(seed, damage)))
        result.of = len(damages)
        disk, paths = Disk(root), subject.files(root)

        def judge(number: int) -> str:
            damage = damages[number]
            disk.restore()
            data = damage.of(originals[damage.file], foreign.get(damage.file, b""))
            paths[damage.file].unlink() if data is None else paths[damage.file].write_bytes(data)
            return subject.judge(root, damage)

        search_for_patches()

        def prepare() -> None:
            spare_syncs()
            spare_searches()
            for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):  # neither the user's registry, nor the copies there
                os.environ[variable] = str(Path(name) / variable)

        wanted = range(len(damages))[first:last]
        for batch in (wanted[at : at + _BATCH] for at in range(0, len(wanted), _BATCH)):
            found, failures = judge_all(batch, judge, prepare)
            result.damages += len(batch)
            result.exact += sum(said == EXACT for said in found.values())
            result.reported += sum(said == REPORTED for said in found.values())
            for number, why in failures:
                result.fail(str(damages[number]), why)
    return result
