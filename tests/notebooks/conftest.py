"""One kernel for all modules of tests: a kernel takes seconds to start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.notebooks.kernels import Kernel, kernel

Opening = Callable[[Path, str], Kernel]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel(tmp_path_factory.mktemp("kernel")) as made:
        yield made


@pytest.fixture(scope="session")
def in_folder(opened: Kernel) -> Opening:
    """The kernel without names, in a folder, after a first cell."""

    def enter(folder: Path, setup: str) -> Kernel:
        opened.check("%reset -f")
        opened.check(f"import os\nos.chdir({str(folder)!r})")
        opened.check(setup)
        return opened

    return enter
