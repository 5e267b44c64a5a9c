"""Caches to damage: of features, of functions, of pipelines' samples with a profile, and of what was compiled.

What is found is exact, what is lost is a miss and computed again, and figures of use are exact or none.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tests.compiling.environments import HERE
from tests.faults.cache_cuts import epoch
from tests.faults.corruption_campaign import EXACT, REPORTED, Damage, Lost, Subject, Wrong, put_back
from tests.faults.stories import Hasty
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.compiling.bundles import export, import_
from warmstore.compiling.misses import lookup_log
from warmstore.compiling.misses.key_descriptions import KeyDescription
from warmstore.compiling.packages.package import Package
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import BadBundle, Damaged, NoArtifact, WarmstoreError
from warmstore.features.keyed.usage_counters import Usage, read_usage
from warmstore.functions.function_cache import FunctionCache
from warmstore.pipeline.profile.profile import Profile
from warmstore.pipeline.tiers.tier_folders import tier_folder
from warmstore.remote.signing import Keyring, SigningKey
from warmstore.storage import history

IDS: list[Any] = [0, 1, 2, 5000, "a", "b", "é", 2**63]  # in the direct table, beyond it, and hashed
FRESH: list[Any] = [3, "c", -1]


def named(root: Path, folder: Path) -> dict[str, Path]:
    """The files below a folder that hold anything, by their names in it."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: root / path.relative_to(root) for name, path in found.items() if path.stat().st_size}


def same_records(before: list[dict[str, Any]], folder: Path) -> bool:
    """Whether all records of a history are there. Raises Wrong for another record."""
    found = list(history.read_history(folder))
    if other := [record for record in found if not any(known.items() <= record.items() for known in before)]:
        raise Wrong(f"the history has {other[0]}, which is of nobody")
    return len(found) == len(before)


def same_usage(before: Usage, path: Path) -> bool:
    """Whether the figures of use are there. Raises Wrong for others than those before, or none."""
    found = read_usage(path)
    if found not in (before, Usage()):
        raise Wrong(f"{path.name} has {found}, and not {before}")
    return found == before


def same_figures(usage: Usage, records: list[dict[str, Any]], folder: Path, damage: Damage) -> bool:
    """Whether the figures of use and the history are there. Nobody can tell those of another cache from its own."""
    if damage.how == "swapped" and damage.file in ("cost.json", history.NAME):
        return False
    found = same_usage(usage, folder / "cost.json"), same_records(records, folder)
    return all(found)


def output(numbers: Iterable[int]) -> dict[str, Any]:
    """The outputs of samples of a feature cache, by their numbers."""
    numbers = list(numbers)
    return {
        "features": np.stack([np.full(4, number, np.float32) for number in numbers]),
        "tokens": [np.arange(number % 5, dtype=np.int16) for number in numbers],
        "info": ([{"number": number} for number in numbers],),
    }


def opened(folder: Path, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(folder, "net", lists="per_sample", files=Hasty(), **options)


def make_features(folder: Path, shift: int = 0) -> Path:
    """A feature cache of two batches; return its folder."""
    cache = opened(folder, async_write=False)
    for part in (IDS[:4], IDS[4:]):
        cache.put_batch(part, output(IDS.index(one) + shift for one in part))
        cache.flush()
    cache.close()
    return folder / "net"


def wrong_answer(cache: ws.FeatureCache, ids: list[Any], numbers: list[int]) -> tuple[str, list[int]]:
    """An output that is not what was put, and the places of the misses."""
    values, missing = cache.get_batch(ids)
    found = [number for at, number in enumerate(numbers) if at not in missing.tolist()]
    if found:
        expected = output(found)
        same = (
            np.array_equal(values["features"], expected["features"])
            and list(map(np.ndarray.tolist, values["tokens"])) == list(map(np.ndarray.tolist, expected["tokens"]))
            and values["info"] == expected["info"]
        )
        if not same:
            return f"{[ids[at] for at in range(len(ids)) if at not in missing]} are {values}", missing.tolist()
    return "", missing.tolist()


class FeatureSubject:
    """A feature cache. Only chunks have one copy: all else is read from the copy, or built again."""

    name = "features"

    def __init__(self) -> None:
        self._usage = Usage()
        self._history: list[dict[str, Any]] = []

    def make(self, root: Path, *, other: bool) -> None:
        path = make_features(root, 50 if other else 0)
        if not other:
            with opened(root) as cache:
                cache.get_batch([*IDS, *FRESH])
            self._usage, self._history = read_usage(path / "cost.json"), list(history.read_history(path))

    def files(self, root: Path) -> dict[str, Path]:
        return named(root, root / "net")

    def judge(self, root: Path, damage: Damage) -> str:
        figures = same_figures(self._usage, self._history, root / "net", damage)
        is_foreign = put_back(root / "net", damage)
        may_fail = damage.file.endswith(".arrow")
        errors = contextlib.suppress(WarmstoreError) if may_fail else contextlib.nullcontext()
        missed: set[int] = set()
        with errors, opened(root, read_only=True) as cache:
            missed |= self._look(cache, IDS, list(range(len(IDS))))
            for at, one in enumerate(IDS):
                missed |= self._look(cache, [one], [at])
        with errors, opened(root, async_write=False) as cache:
            fresh = [100 + at for at in range(len(FRESH))]
            cache.put_batch(FRESH, output(fresh))
            numbers = [*range(len(IDS)), *fresh]
            if again := sorted(self._look(cache, IDS + FRESH, numbers)):
                cache.put_batch([(IDS + FRESH)[numbers.index(at)] for at in again], output(again))
                missed.update(again)
        with opened(root, read_only=True) as cache:
            if left := self._look(cache, IDS + FRESH, numbers):
                raise Lost(f"{sorted(left)} are missed after they were put again")
        if missed and not may_fail and not damage.file.startswith("keys-"):
            raise Lost(f"{sorted(missed)} are missed, and {damage.file} has a copy")
        return EXACT if not missed and figures and not is_foreign else REPORTED

    def _look(self, cache: ws.FeatureCache, ids: list[Any], numbers: list[int]) -> set[int]:
        """The numbers of the misses; all others are exact."""
        problem, missing = wrong_answer(cache, ids, numbers)
        if problem:
            raise Wrong(problem)
        return {numbers[at] for at in missing}


def computed(number: int, text: str = "") -> dict[str, Any]:
    return {"array": np.arange(number, dtype=np.int32), "text": f"{text} {number}", "list": [number, None, 2.5]}


class FunctionSubject:
    """The results of a function. A damaged one is computed again."""

    name = "functions"

    def __init__(self) -> None:
        self._usage = Usage()
        self._history: list[dict[str, Any]] = []

    def make(self, root: Path, *, other: bool) -> None:
        cache = self._cache(root)
        for number in range(6):
            cache._get((number,), {"text": "other" if other else "some"})
        path = cache.path
        cache.close()
        if not other:
            self._usage, self._history = read_usage(path / "cost.json"), list(history.read_history(path))

    def _cache(self, root: Path) -> FunctionCache:
        return FunctionCache(computed, root, version="1", files=Hasty())

    def files(self, root: Path) -> dict[str, Path]:
        return named(root, self._cache(root).path)

    def judge(self, root: Path, damage: Damage) -> str:
        path = self._cache(root).path
        figures = same_figures(self._usage, self._history, path, damage)
        is_foreign = put_back(path, damage)
        misses = []
        for _ in range(2):
            cache = self._cache(root)
            for number in range(6):
                found, like = cache._get((number,), {"text": "some"}), computed(number, "some")
                if not (np.array_equal(found.pop("array"), like.pop("array")) and found == like):
                    raise Wrong(f"the result of {number} is {found}")
            misses.append(cache._usage.here.misses)
            cache.close()
        if misses[1]:
            raise Lost(f"{misses[1]} results are computed in every run")
        if misses[0] and not damage.file.endswith((".arrow", ".index", ".direct")):
            raise Lost(f"{misses[0]} results are missed, and {damage.file} has a copy")
        return EXACT if not misses[0] and figures and not is_foreign else REPORTED


class TierSubject:
    """Samples of a pipeline on the disk, and its profile. Training goes on, with exact samples."""

    name = "pipelines"

    def make(self, root: Path, *, other: bool) -> None:
        epoch(root, 24, 0)
        self._profile(other=other).save(root / "plan" / "profile-key.json")

    def _profile(self, *, other: bool) -> Profile:
        return profile([0.1, 0.2], [100.0, 5.0 if other else 7.0], workers=(1, 2), squeezed=0.5)

    def files(self, root: Path) -> dict[str, Path]:
        return named(root, root / "plan")

    def judge(self, root: Path, damage: Damage) -> str:
        measured = Profile.load(root / "plan" / "profile-key.json")
        if measured not in (None, self._profile(other=False)) and damage.how != "swapped":
            raise Wrong(f"the profile is {measured}")
        found = set(tier_folder(root / "plan").iterdir())
        epoch(root, 24, 0)
        if epoch(root, 24, 1) != 24:
            raise Lost("samples are computed in every epoch")
        return EXACT if measured is not None and found == set(tier_folder(root / "plan").iterdir()) else REPORTED


def content(number: int, *, other: bool) -> bytes:
    """An artifact: blobs of random bytes, and a package and a description of a key in their stored forms."""
    if number == 0:
        return Package(
            "frame", (("numpy", "2.0"),), (("L['x']", "text"),), ((1, None),), other, "avx2 256", b"data"
        ).to_bytes()
    if number == 1:
        return KeyDescription({"input 0": "shape"}, {"add": 7 if other else 8}).to_bytes()
    return np.random.default_rng([number, other]).bytes(700)


COUNT = 5


def fill_artifacts(folder: Path, *, other: bool) -> None:
    with ArtifactStore(folder, "32MB") as store:
        for number in range(COUNT):
            data = content(number, other=other)
            artifact = store.put(
                f"k{number}", "cpp.source", data, environment=HERE, job="job", requirements={"isa": ["avx"]}
            )
            store.used([artifact])


class ArtifactSubject:
    """The index, the blobs and the lookups of a compile cache. A damaged artifact is compiled again."""

    name = "artifacts"

    def make(self, root: Path, *, other: bool) -> None:
        fill_artifacts(root / "c", other=other)
        lookup_log.write(root / "c", Hasty(), "job", self._lookups(other=other), 3)

    def _lookups(self, *, other: bool) -> list[lookup_log.Lookup]:
        return [lookup_log.Lookup("k0", hit=True), lookup_log.Lookup("k1", hit=other, reasons=("torch changed",))]

    def files(self, root: Path) -> dict[str, Path]:
        blobs = {path.read_bytes(): path for path in (root / "c" / "blobs").rglob("*") if path.is_file()}
        names = {f"blob {number}": blobs[content(number, other=root.name == "other")] for number in range(COUNT)}
        files = named(root, root / "c")
        return {**{name: path for name, path in files.items() if not name.startswith("blobs")}, **names}

    def judge(self, root: Path, damage: Damage) -> str:
        (told,) = dict(lookup_log.read(root / "c")).values() or [[]]
        if told not in ([], self._lookups(other=damage.how == "swapped")) and damage.file.startswith("runs"):
            raise Wrong(f"the lookups are {told}")
        missed = self._run(root)
        if len(missed) > 1 and damage.file.startswith("blob"):
            raise Lost(f"{missed} are missed, and {damage.file} is damaged")
        with ArtifactStore(root / "c", "32MB") as store:
            store.verify()  # it drops rows that are damaged where no lookup has come to
        dropped = self._run(root)
        if dropped and not damage.file.startswith("index"):
            raise Lost(f"{dropped} are missed after they were put again")
        if still := self._run(root):
            raise Lost(f"{still} are missed in every run")
        return REPORTED if missed or dropped or not told else EXACT

    def _run(self, root: Path) -> list[int]:
        """What a run does: it makes what it misses. Returns the numbers of these artifacts."""
        with ArtifactStore(root / "c", "32MB") as store:
            missed = [number for number in range(COUNT) if not self._has(store, number)]
            for number in missed:
                store.put(f"k{number}", "cpp.source", content(number, other=False), environment=HERE)
        return missed

    def _has(self, store: ArtifactStore, number: int) -> bool:
        artifact = store.find(f"k{number}", "cpp.source", HERE)
        if artifact is None:
            return False
        try:
            data = store.read(artifact)
        except (Damaged, NoArtifact):
            if store.find(f"k{number}", "cpp.source", HERE) is not None:
                raise Lost(f"{number} is damaged and is found again") from None
            return False
        if data != content(number, other=False) or artifact.requirements != {"isa": ["avx"]}:
            if artifact.requirements == {} and data == content(number, other=False):
                return True  # it was put again by the judge
            raise Wrong(f"{artifact} is {data[:20]!r}")
        return True


KEY = SigningKey.parse("hmac:" + "5a" * 32)


class BundleSubject:
    """A bundle, with a signature or without. It is imported whole, or not at all."""

    def __init__(self, *, signed: bool) -> None:
        self.name = "bundle, signed" if signed else "bundle"
        self._keyring = Keyring((KEY,) if signed else ())
        self._known: list[Any] = []

    def make(self, root: Path, *, other: bool) -> None:
        fill_artifacts(root / "c", other=other)
        with ArtifactStore(root / "c", "32MB") as store:
            export(store, root / "all.tar.zst", keyring=self._keyring)
            if not other:
                self._known = self._told(store)

    def _told(self, store: ArtifactStore) -> list[Any]:
        names = ("key", "kind", "digest", "size", "environment", "requirements", "created", "host", "seconds")
        return [[getattr(artifact, name) for name in names] for artifact in store.all()] + [store.job("job")]

    def files(self, root: Path) -> dict[str, Path]:
        return {"bundle": root / "all.tar.zst"}

    def judge(self, root: Path, damage: Damage) -> str:
        with ArtifactStore(root / "new", "32MB") as store:
            try:
                import_(store, root / "all.tar.zst", keyring=self._keyring)
            except (BadBundle, WarmstoreError, FileNotFoundError):
                if store.all():
                    raise Wrong("a part of the bundle was imported") from None
                return REPORTED
            if damage.how == "swapped":
                return EXACT  # it is whole
            if self._told(store) != self._known:
                raise Wrong(f"{self._told(store)} was imported, and {self._known} exported")
        return EXACT


SUBJECTS: list[Subject] = [
    FeatureSubject(),
    FunctionSubject(),
    TierSubject(),
    ArtifactSubject(),
    BundleSubject(signed=False),
    BundleSubject(signed=True),
]
