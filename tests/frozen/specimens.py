"""Specimens of what is found by identity: feature caches, disk tiers, compiled artifacts, and remotes with all of them.

An identity says whether a computation is the one whose result was kept. Its rules change over time, and what was kept
under older ones must then be found or missed, and never be a wrong answer. `IDENTITY` numbers the generations of these
rules. `write` makes the specimens of the present one; what each must hold follows from the program alone.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.compiling.hosts import host
from tests.compiling.programs import START, Report, run
from tests.frozen import program
from tests.pipeline.making import plan_of
from torch import nn

import warmstore as ws
from warmstore.compiling.environment import Environment
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.plan import Plan
from warmstore.remote.signing import Keyring, SigningKey

IDENTITY = 1
"""The generation of the rules. Rules that say something else for the same program are a new one."""

ROOT = Path(__file__).parents[2]

# Feature caches

NUMBERS = list(range(7))
PLAIN, DESCRIBED, VERSIONS, BY_HAND = "plain", "described", "versions", "by/hand"
CACHES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    DESCRIBED: {"lists": "per_sample", "codec": "zstd"},
    VERSIONS: {"versions": "new"},
    BY_HAND: {},
}
"""The caches by their id, and how they are opened."""

CALLS: list[tuple[Callable[[], nn.Module], dict[str, int]]] = [
    (program.Backbone, {}),
    (lambda: program.Backbone(shift=1.5), {}),
    (program.Backbone, {"times": 3}),
]
"""What filled each version of `VERSIONS`: a module, and arguments that are no batches."""


def features(numbers: list[int], shift: float = 0.5, times: int = 1) -> Any:
    """What `Backbone` gives, float32 [n, 3], computed without torch."""
    x = np.array(numbers)[:, None] + np.arange(4) / 4 - np.arange(4) / 8
    linear = x @ (np.arange(-6, 6).reshape(3, 4) / 4).T + np.arange(3)
    return torch.from_numpy((np.maximum(linear, 0) * 2 * times + shift).astype(np.float32))


def descriptions(numbers: list[int]) -> Any:
    """What `Describer` gives."""
    return {
        "features": features(numbers),
        "half": (
            torch.tensor([[number, number + 0.25] for number in numbers], dtype=torch.bfloat16),
            {"first": torch.tensor(numbers, dtype=torch.int16)},
        ),
        "boxes": [torch.arange(2.0 * number).reshape(number, 2) for number in numbers],
        "names": [{"name": f"é {number}", "known": number % 2 == 0} for number in numbers],
    }


def ids_of(name: str, numbers: list[int]) -> list[Any]:
    """Ids of the samples in a cache."""
    return [f"sample {number}" for number in numbers] if name == DESCRIBED else numbers


def opened_cache(folder: Path | str, name: str, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(folder, name, **{**CACHES[name], **options})


def write_caches(folder: Path) -> None:
    with opened_cache(folder, PLAIN) as cache:
        cache.fill(program.Backbone(), [(program.batch(some), some) for some in ([0, 1, 2], [3, 4])], progress=False)
        ws.CachedModule(program.Backbone(), cache)(program.batch([4, 5, 6]), cache_ids=[4, 5, 6])
    with opened_cache(folder, DESCRIBED) as cache:
        described = ws.CachedModule(program.Describer(), cache)
        for some in (NUMBERS[:4], NUMBERS[4:]):
            described(program.batch(some), cache_ids=ids_of(DESCRIBED, some))
            cache.flush()
    for make, arguments in CALLS:
        with opened_cache(folder, VERSIONS) as cache:
            ws.CachedModule(make(), cache)(program.batch(NUMBERS), cache_ids=NUMBERS, **arguments)
    with opened_cache(folder, BY_HAND) as cache:
        cache.put_batch(NUMBERS, features(NUMBERS))
    for path in folder.glob("*/keys-*"):
        path.unlink()  # derived, and named by the host


# Disk tiers


def write_files(folder: Path) -> None:
    """The files that a pipeline reads, with the times they had."""
    for number in range(4):
        path = folder / f"{number}.bin"
        path.write_bytes(bytes([number] * (number + 3)))
        os.utime(path, ns=(10**18, 10**18 + number))


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "words": lambda: (
        ws.Pipeline([f"word {number}" for number in range(12)])
        .step(program.measured)
        .step(program.padded, size=8)
        .step(program.shaken, random=True)
    ),
    "images": lambda: (
        ws.Pipeline(list(range(12))).step(program.drawn).step(program.divided, by=4).step(program.flipped, random=True)
    ),
    "uneven": lambda: ws.Pipeline(list(range(8))).step(program.uneven),
    "files": lambda: ws.Pipeline([f"{number}.bin" for number in range(4)]).step(program.read),
}
"""Pipelines by the name of their tier's folder. `files` runs in the folder of its files."""

_PLACEMENTS: dict[str, tuple[list[tuple[int, str, str]], list[int]]] = {
    "words": ([(1, "disk", "raw"), (2, "disk", "zstd")], [5, 5]),
    "images": ([(2, "disk", "raw"), (1, "disk", "zstd")], [6, 4]),
    "uneven": ([(1, "disk", "raw")], [8]),
    "files": ([(1, "disk", "raw")], [4]),
}


def plan_for(name: str, pipe: Pipeline, folder: Path) -> Plan:
    """What a pipeline keeps: some after one step, some after another, some not at all."""
    placements, counts = _PLACEMENTS[name]
    return plan_of(pipe, placements, counts, folder=folder)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_tiers(folder: Path) -> None:
    for name, make in PIPELINES.items():
        with tempfile.TemporaryDirectory() as files, working_in(Path(files)):
            write_files(Path(files))
            pipe = make()
            with pipe.loader(plan_for(name, pipe, folder / name), 4, workers=0) as loader:
                list(loader)


# Compiled artifacts

KEY = SigningKey.parse("hmac:" + "5a" * 32)
"""What the artifacts in the remote are signed with."""

MADE_IN = Environment(
    system="Linux", machine="x86_64", glibc="2.36", python="cpython-3.11.7", torch="2.13.0", torch_git="abc",
    torch_path="/site/torch", triton="3.4.0", cuda="12.8", jax="0.10.2", jaxlib="0.10.2", gpus=("NVIDIA H200",),
    compute=((9, 0),), driver="570.10", isa=("avx", "avx2", "fma"), capability="avx2", compiler="g++ 12", threads=8,
)  # fmt: skip
"""The environment of the artifacts in `ARTIFACTS`. So they can be looked up on any machine."""

ARTIFACTS: dict[tuple[str, str], bytes] = {
    ("triton/aa/kernel.ptx", "triton.ptx"): b"ptx" * 100,
    ("inductor/bb/kernel.best_config", "autotune"): b'{"BLOCK": 64}',
    ("package/cc/dd/4.0123456789abcdef", "package"): b"package" * 100,
    ("jax/jit_f-ee-cache", "jax"): b"jax" * 100,
    ("ff/gg", "of nobody's kind"): bytes(range(256)),
}
"""By key and kind. No compiler ever sees them."""

JOB, MADE_UP, THERE = "compiled", "made up", "at the remote"

COMPILED = """
import torch
from tests.frozen import program
x, y = torch.arange(16.0).reshape(4, 4), torch.arange(16.0, 32.0).reshape(4, 4)
values, right = [], []
def same(compiled, plain, *args):
    values.extend(compiled(*args).flatten().tolist())
    right.extend(plain(*args).flatten().tolist())
"""
WITH_STORE = """
same(ws.compile(program.fused), program.fused, x)
with torch._functorch.config.patch(enable_autograd_cache=False):  # whose entries are found before those of Inductor
    same(torch.compile(program.product), program.product, x, y)
"""
"""Compiled with the local store."""

WITH_REMOTE = """
model = program.Product()
same(ws.compile(model), model, x)
"""
"""Compiled with the remote."""

_UNNAMED = "import platform\nplatform.node = lambda: 'host'\n"


def compiling(code: str, folder: Path, *, start: str = START, **init: Any) -> Report:
    """Run `code` in a fresh process with the store in a folder."""
    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WARMSTORE_SIGNING_KEY": KEY.line,
    }
    return run(COMPILED + code, folder, env=env, start=start, **init)


def write_compiled(folder: Path) -> None:
    report = compiling(WITH_STORE, folder, start=_UNNAMED + START, job=JOB)
    assert report.right
    with ArtifactStore(folder) as store:
        _put(store)
        store.used(store.all(MADE_UP))
        kinds = {one.kind for one in store.all(JOB)}
    assert kinds >= {"package", "aot_autograd", "fx_graph", "cpp.so"}, kinds


def _put(store: ArtifactStore) -> None:
    node, platform.node = platform.node, lambda: "host"
    try:
        for (key, kind), data in ARTIFACTS.items():
            store.put(key, kind, data, environment=MADE_IN, job=MADE_UP, seconds=2.0)
    finally:
        platform.node = node


# Remotes

RECORDS = "records"


def records() -> dict[str, Any]:
    """What the record store holds that was pushed."""
    return {
        "image": np.arange(60, dtype=np.uint8).reshape(10, 3, 2),
        "label": np.arange(10) - 5,
        "text": [f"é {number}" for number in range(10)],
    }


def write_remote(folder: Path, caches: Path) -> None:
    """A record store, feature caches and signed artifacts in one remote."""
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        fields = {"image": ws.Array("uint8", (3, 2)), "label": ws.Array("int64"), "text": ws.Text()}
        with ws.RecordStore.create(here / RECORDS, fields) as store:
            store.extend(records())
            store.push(folder / RECORDS)
        shutil.copytree(caches, here / "caches")
        for name in (PLAIN, DESCRIBED):
            with opened_cache(here / "caches", name) as cache:
                cache.push(folder / "caches")
        report = compiling(WITH_REMOTE, here / "one", start=_UNNAMED + START, job=THERE, remote=str(folder))
        assert report.right
        with host(here / "other", folder, keyring=Keyring((KEY,)), job=MADE_UP, environment=MADE_IN) as one:
            _put(one.store)
            for artifact in one.store.all():
                one.tier.offer(artifact)


def write(target: Path) -> None:
    """Write all of them into a folder that is there."""
    write_caches(target / "caches")
    write_tiers(target / "tiers")
    write_compiled(target / "compiled")
    write_remote(target / "remote", target / "caches")
