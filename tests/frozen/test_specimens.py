"""What was kept under older rules of identity is found or is a clean miss, and is never a wrong answer.

A specimen was written once and is committed as it is. What needs no identity, such as a cache's values by their ids, is
read for ever. What does is looked up by the program that filled it: a hit must be right, and a miss must compute, keep
what it computes beside the specimen, and leave the specimen alone. A program that was edited never gets a hit.

When a test here fails, what people have kept is answered wrongly or cannot be read. It is never the files, nor their
program, that are to be changed.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from tests.cli.test_features import run as command
from tests.compiling.hosts import OTHER_KEY, host
from tests.frozen import program, specimens
from tests.frozen.specimens import (
    ARTIFACTS,
    BY_HAND,
    CACHES,
    CALLS,
    DESCRIBED,
    JOB,
    KEY,
    MADE_IN,
    MADE_UP,
    NUMBERS,
    PIPELINES,
    PLAIN,
    RECORDS,
    VERSIONS,
    WITH_REMOTE,
    WITH_STORE,
    compiling,
    descriptions,
    features,
    ids_of,
    opened_cache,
    plan_for,
    records,
    write_files,
)
from tests.frozen.test_frozen import equal
from tests.pipeline.making import assigned, check, expected
from tests.slow import thinned
from torch import nn

import warmstore as ws
from warmstore.compiling.doctor import doctor
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.features.cache_inspection import find_caches, read_state
from warmstore.features.keyed.cache_versions import read_versions
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.steps import Step
from warmstore.remote.signing import Keyring

HERE = Path(__file__).parent
GENERATIONS = range(1, specimens.IDENTITY + 1)
PROGRAM = "20b6307f2de8a420"


def test_every_generation_has_specimens() -> None:
    """A new generation brings its own, and keeps all of the ones before."""
    wanted = {f"identity-{generation}" for generation in GENERATIONS}
    assert {path.name for path in HERE.glob("identity-*")} == wanted, (
        "run `python -m tests.frozen.make` and commit what it writes"
    )


def test_the_program_is_the_one_that_filled_them() -> None:
    """An edited program gets clean misses only, and these tests would say nothing."""
    assert blake3(Path(program.__file__).read_bytes()).hexdigest(length=8) == PROGRAM


@pytest.fixture(params=GENERATIONS, ids="identity-{}".format)
def frozen(request: pytest.FixtureRequest) -> Path:
    """The specimens of one generation, not to be changed."""
    return HERE / f"identity-{request.param}"


@pytest.fixture
def copied(frozen: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a part of them, to be used and changed."""

    def copy(name: str) -> Path:
        target = tmp_path / "copy" / name
        shutil.copytree(frozen / name, target)
        for path in (target, *target.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)  # whatever the checkout made of them
        return target

    return copy


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "warmstore")
    return caplog


# Feature caches


def outputs(name: str, numbers: list[int]) -> Any:
    return descriptions(numbers) if name == DESCRIBED else features(numbers)


def module_of(name: str) -> nn.Module:
    return program.Describer() if name == DESCRIBED else program.Backbone()


def check_values(cache: ws.FeatureCache, name: str) -> None:
    """Every sample is there, in any order, and no other."""
    for some in (NUMBERS, NUMBERS[::-2]):
        values, missing = cache.get_batch(ids_of(name, some))
        assert not len(missing)
        assert equal(values, outputs(name, some))
    assert cache.get_batch([10**6, "nobody"])[1].tolist() == [0, 1]
    assert cache.stats().damaged == 0


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_read_where_it_lies(frozen: Path, name: str) -> None:
    with opened_cache(frozen / "caches", name, read_only=True) as cache:
        check_values(cache, name)


def test_every_version_of_a_cache_is_read(copied: Callable[[str], Path]) -> None:
    with opened_cache(copied("caches"), VERSIONS) as cache:
        found = cache.stats().versions
        assert len(found) == len(CALLS)
        assert {version.entries for version in found} == {len(NUMBERS)}
        read = []
        for version in found:
            assert version.fingerprint
            values, missing = cache._bind(version.fingerprint).get_batch(NUMBERS)
            assert not len(missing)
            read.append(values)
        for wanted in (features(NUMBERS), features(NUMBERS, shift=1.5), features(NUMBERS, times=3)):
            assert sum(equal(values, wanted) for values in read) == 1


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("name", "versions"), [(PLAIN, 1), (DESCRIBED, 1), (VERSIONS, 3), (BY_HAND, 1)])
def test_a_cache_is_inspected(frozen: Path, name: str, versions: int) -> None:
    path = frozen / "caches" / name.replace("/", "%2F")
    assert [state.id for state in map(read_state, find_caches(path))] == [name] * versions
    assert [version.entries for version in read_versions(path.parent, path.name)] == [len(NUMBERS)] * versions
    code, said, _ = command("features", "stats", path, "--json")
    assert code == 0
    assert len(json.loads(said)) == versions
    code, said, _ = command("store", "inspect", path, "--json")
    assert code == 0
    assert json.loads(said)["cache"]["id"] == name
    for words in (("store", "inspect"), ("features", "stats"), ("store", "verify")):
        assert command(*words, path)[0] == 0


def answer(cached: ws.CachedModule, ids: list[Any], wanted: Any, **arguments: Any) -> str:
    """How a call for these samples was answered, rightly in any case: "hit", "miss", or "stale" for a StaleCache."""
    before = cached.cache.stats()
    try:
        output = cached(program.batch(NUMBERS), cache_ids=ids, **arguments)
    except ws.StaleCache:
        return "stale"
    after = cached.cache.stats()
    assert equal(output, wanted)
    looked_up = (after.hits - before.hits, after.misses - before.misses)
    assert looked_up in ((len(ids), 0), (0, len(ids))), "all of them, or none"
    return "hit" if looked_up[0] else "miss"


def files_of(folder: Path) -> dict[Path, bytes]:
    """All files of a specimen but those that are derived."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("keys-", "cost", "edit.lock"))
    }


def check_kept(folder: Path, before: dict[Path, bytes]) -> None:
    """What was there is there as it was; others may lie beside it."""
    now = files_of(folder)
    assert {path: now.get(path) for path in before} == before


CLEAN = ("hit", "miss", "stale")


@pytest.mark.parametrize("versions", ["raise", "new"])
@pytest.mark.parametrize(
    ("name", "make", "arguments", "wanted"),
    thinned(
        2,
        [
            (PLAIN, program.Backbone, {}, {}),
            (DESCRIBED, program.Describer, {}, {}),
            (VERSIONS, CALLS[0][0], CALLS[0][1], {}),
            (VERSIONS, CALLS[1][0], CALLS[1][1], {"shift": 1.5}),
            (VERSIONS, CALLS[2][0], CALLS[2][1], {"times": 3}),
        ],
    ),
)
def test_the_module_that_filled_a_cache(
    copied: Callable[[str], Path],
    lines: pytest.LogCaptureFixture,
    name: str,
    make: Callable[[], nn.Module],
    arguments: dict[str, int],
    wanted: dict[str, float],
    versions: str,
) -> None:
    """Over a cache that was filled under older rules it gets a version of its own beside it, and one line says so.

    StaleCache is documented where versions="raise". With versions="new" there is none.
    """
    folder, ids = copied("caches"), ids_of(name, NUMBERS)
    right = descriptions(NUMBERS) if name == DESCRIBED else features(NUMBERS, **wanted)
    before = files_of(folder)
    with opened_cache(folder, name, versions=versions) as cache:
        cached = ws.CachedModule(make(), cache)
        first = answer(cached, ids, right, **arguments)
        said = [line.getMessage() for line in lines.records if name in line.getMessage()]
        said = [line for line in said if "key index" not in line]  # that is derived, and no part of the specimen
        assert first in CLEAN[: 2 if versions == "new" else 3]
        assert len(said) == (1 if first == "miss" else 0)
        if first != "stale":
            assert answer(cached, ids, right, **arguments) == "hit"
    check_kept(folder, before)
    if first == "hit":
        assert files_of(folder).keys() == before.keys()
    if first == "miss":  # what it computed is found by the next process
        with opened_cache(folder, name, versions=versions) as cache:
            assert answer(ws.CachedModule(make(), cache), ids, right, **arguments) == "hit"


def test_a_cache_that_was_filled_by_hand(copied: Callable[[str], Path]) -> None:
    """It is of nobody, so a module may take it over."""
    with opened_cache(copied("caches"), BY_HAND) as cache:
        cached = ws.CachedModule(program.Backbone(), cache)
        assert answer(cached, NUMBERS, features(NUMBERS)) in CLEAN
        check_values(cache, BY_HAND)


class Edited(program.Backbone):
    """The same weights and settings, another forward."""

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return program.scaled(torch.relu(self.linear(x - self.mean))) * times - self.shift


def with_weights(change: Callable[[program.Backbone], object]) -> Callable[[pytest.MonkeyPatch], nn.Module]:
    def make(_: pytest.MonkeyPatch) -> nn.Module:
        module = program.Backbone()
        with torch.no_grad():
            change(module)
        return module

    return make


def patched(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], nn.Module]:
    def make(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
        monkeypatch.setattr(program, name, value)
        return program.Backbone()

    return make


def hooked(_: pytest.MonkeyPatch) -> nn.Module:
    module = program.Backbone()
    module.register_forward_hook(lambda module, args, output: output + 1)
    return module


OTHER_MODULES: dict[str, Callable[[pytest.MonkeyPatch], nn.Module]] = {
    "a weight": with_weights(lambda module: module.linear.weight[0].add_(1)),
    "a buffer": with_weights(lambda module: module.mean.mul_(2)),
    "a setting": lambda _: program.Backbone(shift=0.25),
    "forward": lambda _: Edited(),
    "a function that forward calls": patched("scaled", lambda x: x * 4),
    "a global that the function reads": patched("SCALE", 4),
    "a hook": hooked,
    "a child": with_weights(lambda module: setattr(module, "linear", nn.Sequential(module.linear, nn.Tanh()))),
}


@pytest.mark.parametrize("versions", ["raise", "new"])
@pytest.mark.parametrize("change", thinned(3, OTHER_MODULES))
def test_another_module_is_never_answered(
    copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, change: str, versions: str
) -> None:
    """Neither from the specimen nor from what the module that filled it has added."""
    with opened_cache(copied("caches"), PLAIN, versions=versions) as cache:
        answer(ws.CachedModule(program.Backbone(), cache), NUMBERS, features(NUMBERS))
        module = OTHER_MODULES[change](monkeypatch)
        right = module(program.batch(NUMBERS))
        assert not equal(right, features(NUMBERS))
        assert answer(ws.CachedModule(module, cache), NUMBERS, right) in CLEAN[1 : 2 if versions == "new" else 3]


@pytest.mark.parametrize("versions", ["raise", "new"])
def test_other_arguments_are_never_answered(copied: Callable[[str], Path], versions: str) -> None:
    with opened_cache(copied("caches"), PLAIN, versions=versions) as cache:
        cached = ws.CachedModule(program.Backbone(), cache)
        answer(cached, NUMBERS, features(NUMBERS))
        said = answer(cached, NUMBERS, features(NUMBERS, times=5), times=5)
        assert said in CLEAN[1 : 2 if versions == "new" else 3]


def test_a_cache_is_merged_into_a_new_one(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("caches")
    for name in CACHES:
        with opened_cache(tmp_path / "new", name, **({"versions": "raise"} if name == VERSIONS else {})) as cache:
            cache.merge(folder / name.replace("/", "%2F"), progress=False)
            check_values(cache, name)


# Disk tiers


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Which steps were run for each sample."""
    counted: dict[int, set[int]] = {}
    call = Step.__call__

    def counting(self: Step, value: Any, epoch: int, seed: int, index: int, number: int) -> Any:
        counted.setdefault(index, set()).add(number)
        return call(self, value, epoch, seed, index, number)

    monkeypatch.setattr(Step, "__call__", counting)
    return counted


@pytest.fixture
def at_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that a pipeline reads, and the one that the program works in."""
    (tmp_path / "files").mkdir()
    write_files(tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return tmp_path / "files"


def found(pipe: Pipeline, plan: Plan, ran: dict[int, set[int]]) -> list[str]:
    """How an epoch met each placement: "hit" or "miss". Every batch is what it is uncached."""
    ran.clear()
    with pipe.loader(plan, 4, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(1))
    whole, said = set(range(len(pipe.steps))), []
    placed = assigned(plan, pipe)
    for number, placement in enumerate(plan.placements):
        each = [ran.get(int(index), set()) for index in np.flatnonzero(placed == number)]
        if all(steps == whole - set(range(placement.step)) for steps in each):
            said.append("hit")
        else:
            assert all(steps == whole for steps in each), "all of them, or none"
            said.append("miss")
    assert all(ran[int(index)] == whole for index in np.flatnonzero(placed < 0))
    return said


@pytest.mark.usefixtures("at_files")
@pytest.mark.parametrize("name", thinned(2, PIPELINES))
def test_the_pipeline_that_filled_a_tier(
    copied: Callable[[str], Path], ran: dict[int, set[int]], lines: pytest.LogCaptureFixture, name: str
) -> None:
    folder = copied("tiers") / name
    pipe = PIPELINES[name]()
    plan = plan_for(name, pipe, folder)
    said = found(pipe, plan, ran)
    assert len(lines.records) <= said.count("miss")
    assert found(pipe, plan, ran) == ["hit"] * len(plan.placements), "what was missed is kept now"


@pytest.mark.usefixtures("untouched")
def test_a_tier_is_read_as_record_stores(frozen: Path) -> None:
    stores = sorted(path.parent for path in (frozen / "tiers").rglob("store.json"))
    counts = Counter()
    for path in stores:
        with closing(ws.RecordStore.open(path)) as store:
            assert store.verify(progress=False).ok
            counts[path.relative_to(frozen / "tiers").parts[0]] += len(store)
            if "images" in path.parts:
                about = json.loads((path.parent / "about.json").read_text())
                for index, value in zip(store["sample"][:][:, 0].tolist(), store["value"][:], strict=True):
                    image = program.drawn(index)
                    assert equal(np.asarray(value), program.divided(image, by=4) if len(about["steps"]) > 1 else image)
    assert counts == {"words": 10, "images": 10, "uneven": 8, "files": 4}


def another_step(pipe: Pipeline, number: int, **changes: Any) -> Pipeline:
    steps = list(pipe.steps)
    steps[number] = replace(steps[number], **changes)
    return Pipeline(pipe.source, tuple(steps))


def inverted(number: int) -> Any:
    return 255 - program.drawn(number)


OTHER_STEPS: dict[str, tuple[str, Callable[[Pipeline], Pipeline], dict[str, Any], list[int]]] = {
    "an argument": ("images", lambda pipe: another_step(pipe, 1, arguments={"by": 8}), {}, [0]),
    "a type of an argument": ("images", lambda pipe: another_step(pipe, 1, arguments={"by": 4.0}), {}, [0]),
    "a function": ("images", lambda pipe: another_step(pipe, 0, function=inverted), {}, [0, 1]),
    "a global": ("words", lambda pipe: pipe, {"SCALE": 3}, [0, 1]),
    "a global of the second step": ("images", lambda pipe: pipe, {"SCALE": 4}, [0]),
}
"""Pipeline, its change, names of the program that are changed, and the placements that are not to be found."""


@pytest.mark.usefixtures("at_files")
@pytest.mark.parametrize("change", thinned(2, OTHER_STEPS))
def test_other_steps_are_never_answered(
    copied: Callable[[str], Path], ran: dict[int, set[int]], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    name, edit, names, missed = OTHER_STEPS[change]
    folder = copied("tiers") / name
    pipe = PIPELINES[name]()
    found(pipe, plan_for(name, pipe, folder), ran)
    for one, value in names.items():
        monkeypatch.setattr(program, one, value)
    pipe = edit(pipe)
    said = found(pipe, plan_for(name, pipe, folder), ran)
    assert [said[number] for number in missed] == ["miss"] * len(missed)


def test_other_files_are_never_answered(
    copied: Callable[[str], Path], ran: dict[int, set[int]], at_files: Path
) -> None:
    folder = copied("tiers") / "files"
    pipe = PIPELINES["files"]()
    found(pipe, plan_for("files", pipe, folder), ran)
    for number in range(4):
        (at_files / f"{number}.bin").write_bytes(bytes([number + 100] * (number + 3)))  # of the same size, and newer
    assert found(pipe, plan_for("files", pipe, folder), ran) == ["miss"]


# Compiled artifacts


def check_made_up(store: ArtifactStore) -> None:
    """The artifacts that were made for no compiler are found in their environment, and not in another."""
    assert {(one.key, one.kind) for one in store.all(MADE_UP)} == ARTIFACTS.keys()
    for (key, kind), data in ARTIFACTS.items():
        artifact = store.find(key, kind, MADE_IN)
        assert artifact is not None
        assert store.read(artifact) == data
        assert (artifact.environment, artifact.host, artifact.seconds) == (MADE_IN, "host", 2.0)
        elsewhere = replace(MADE_IN, torch="2.14.0", triton="3.5.0", jax="0.11.0")
        assert store.find(key, kind, elsewhere) is None


def test_an_artifact_store_is_read(copied: Callable[[str], Path]) -> None:
    folder = copied("compiled")
    with ArtifactStore(folder) as store:
        check_made_up(store)
        kinds = Counter(one.kind for one in store.all(JOB))
        assert kinds["package"] == kinds["fx_graph"] == kinds["aot_autograd"] == 1
        assert kinds["cpp.so"] > 1
        assert [blake3(store.read(one)).hexdigest() for one in store.all()] == [one.digest for one in store.all()]
        assert store.verify() == []
        told = store.stats()
        assert told.artifacts == len(store.all())
        assert (told.jobs[MADE_UP], told.hits >= len(ARTIFACTS)) == (len(ARTIFACTS), True)
        assert not {"damaged", "rebuilt"} & {name for name, count in told.counters.items() if count}
        artifact = store.put("new", "jax", b"new", environment=MADE_IN)
        assert store.read(artifact) == b"new"
    well = {one.name: one.well for one in doctor(folder)}
    assert well["artifacts"]
    assert well["integrity"]
    assert f"last run of {JOB}" in well
    for arguments in (["stats"], ["ls"], ["verify"]):
        assert command("compiled", *arguments, "--dir", folder)[0] == 0


EDITED = """
program.turned = program.straight
model = program.Product()
same(ws.compile(model), model, x)
assert right[-16:] != right[-32:-16]
"""


@pytest.mark.slow
def test_compiled_functions_are_used_or_refused(copied: Callable[[str], Path]) -> None:
    """By whoever has the same torch, compiler and CPU they are used. The others compile, without a word of trouble."""
    report = compiling(WITH_STORE + WITH_REMOTE + EDITED, copied("compiled"), job=JOB, remote=str(copied("remote")))
    assert report.active
    assert report.right
    assert "Traceback" not in report.stderr


# Remotes


@pytest.fixture
def remote(copied: Callable[[str], Path]) -> Iterator[Path]:
    """A copy of the remote."""
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    return copied("remote")


def test_a_record_store_at_a_remote(remote: Path, tmp_path: Path) -> None:
    before = files_of(remote)
    url = (remote / RECORDS).as_uri()
    for store in (
        ws.RecordStore.clone(remote / RECORDS, tmp_path / "clone", progress=False),
        ws.RecordStore.open(url, cache_dir=tmp_path / "local"),
    ):
        with closing(store):
            assert equal(dict(store[:]), records())
    assert files_of(remote) == before
    with ws.RecordStore.open(tmp_path / "clone", "a") as store:
        store.extend(records())
        store.push(remote / RECORDS)
    with closing(ws.RecordStore.open(url, cache_dir=tmp_path / "local")) as store:
        assert len(store) == 20


@pytest.mark.parametrize("name", [PLAIN, DESCRIBED])
def test_a_cache_at_a_remote(remote: Path, tmp_path: Path, name: str) -> None:
    """The lists of shared caches before there were segments are not read: a clean miss, and what is pushed stays."""
    before = files_of(remote)
    with opened_cache(tmp_path / "here", name) as cache:
        assert cache.pull(remote / "caches", progress=False).records == 0
        assert len(cache) == 0
    with opened_cache((remote / "caches").as_uri(), name, cache_dir=tmp_path / "local") as cache:
        assert len(cache) == 0
    check_kept(remote, before)


@pytest.mark.parametrize("versions", thinned(3, ["raise", "new"]))
@pytest.mark.parametrize("way", ["pulled", "by its URL"])
@pytest.mark.parametrize("name", [PLAIN, DESCRIBED])
def test_the_module_that_filled_a_cache_at_a_remote(
    remote: Path, tmp_path: Path, name: str, way: str, versions: str
) -> None:
    before, ids = files_of(remote), ids_of(name, NUMBERS)
    if way == "pulled":
        with opened_cache(tmp_path / "here", name) as cache:
            cache.pull(remote / "caches", progress=False)
        cache = opened_cache(tmp_path / "here", name, versions=versions)
    else:
        cache = opened_cache((remote / "caches").as_uri(), name, cache_dir=tmp_path / "local", versions=versions)
    with cache:
        cached = ws.CachedModule(module_of(name), cache)
        first = answer(cached, ids, outputs(name, NUMBERS))
        assert first in CLEAN[: 2 if versions == "new" else 3]
        if first == "miss":
            assert answer(cached, ids, outputs(name, NUMBERS)) == "hit"
    check_kept(remote, before)


def test_signed_artifacts_at_a_remote(remote: Path, tmp_path: Path) -> None:
    """Manifests of before there were segments are not read, with their key or another: a clean miss."""
    before = files_of(remote)
    for number, key in enumerate((KEY, OTHER_KEY)):
        folder = tmp_path / str(number)
        with host(folder, remote, keyring=Keyring((key,)), job=MADE_UP, environment=MADE_IN) as there:
            assert there.tier.keys(MADE_UP) == 0
            assert there.tier.fetch_job(MADE_UP) == 0
            assert not there.store.all()
    check_kept(remote, before)
