"""JAX and Grain, each in a process of its own: JAX's threads make every later fork of a process a deadlock."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.slow import thinned


@pytest.mark.parametrize("package", thinned(2, ["grain", "jax"]))
def test_its_own_tests_pass(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    tests = Path(__file__).parent / f"with_{package}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests.parents[2])
    assert done.returncode == 0, done.stdout
