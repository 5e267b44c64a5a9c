"""What the tests of the compile cache share: environments that differ, and a store that one cold run has filled."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.compiling.programs import SINE, run

from warmstore.compiling.artifacts import ArtifactStore
from warmstore.compiling.environment import Environment

HERE = Environment(
    system="Linux",
    machine="x86_64",
    glibc="2.36",
    python="cpython-3.11.7",
    torch="2.13.0",
    torch_git="abc",
    torch_path="/site/torch",
    triton="3.4.0",
    cuda="12.8",
    jax="0.10.2",
    jaxlib="0.10.2",
    gpus=("NVIDIA H200",),
    compute=((9, 0),),
    driver="570.10",
    isa=("avx", "avx2", "avx512f", "fma"),
    capability="avx512",
    compiler="g++ 12",
    threads=8,
)


def elsewhere(**changes: Any) -> Environment:
    """`HERE` with some of it changed."""
    return replace(HERE, **changes)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache", "64MB")


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of a store that a cold run of SINE has filled; all workers of xdist share it. Not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "compiled-sine"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            making = folder.with_name("compiled-sine-making")
            report = run(SINE, making)
            assert report.right
            assert report.kept
            assert not report.hits
            making.rename(folder)
    return folder


@pytest.fixture
def filled(first_run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    folder = tmp_path / "store"
    shutil.copytree(first_run, folder)
    return folder


@pytest.fixture
def blobs() -> Callable[[Path], list[Path]]:
    """The files of a store's folder that hold what was compiled, answers about the machine left out."""
    return lambda folder: [path for path in sorted((folder / "blobs").glob("*/*")) if path.stat().st_size > 3]
