"""A store that one cold run has filled, copied for each test: a cold run takes ten seconds, a warm one half of one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from tests.compiling.programs import SINE, run
from tests.remote.conftest import nginx, s3_proxy, s3_server

__all__ = ["nginx", "s3_proxy", "s3_server"]


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of a store that a cold run of SINE has filled; all workers of xdist share it. Not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "compiled-sine"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            making = folder.with_name("compiled-sine-making")
            report = run(SINE, making, fresh=True)
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
