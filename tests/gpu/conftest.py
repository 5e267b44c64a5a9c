"""Tests on a GPU, run by `make test-gpu`. Without one they are skipped, by one line that says so.

`pytest tests/gpu --gpu=cpu` runs on the CPU those that need a device and no CUDA, so that they are known to be right.
"""

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest) -> torch.device:
    """The device, whose current work is done."""
    name = request.config.getoption("--gpu")
    if name is None:
        pytest.skip("needs a GPU; run with make test-gpu")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        pytest.skip("this torch finds no GPU")
    torch.cuda.synchronize()
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def cuda(gpu: torch.device) -> torch.device:
    """`gpu` for tests of streams, device memory and CUDA's compilers."""
    if gpu.type == "cpu":
        pytest.skip("needs CUDA")
    return gpu


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give all tests that are skipped one place, so that pytest reports them in one line."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = str(_HERE), 1, report.longrepr[2]
    return report
