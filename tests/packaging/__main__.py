"""`python -m tests.packaging [NAME ...]`: build the sdist and the wheel, and try them in empty environments.

A table has a row for each environment; the status is 1 if anything failed. With names, only those rows, of the
distributions that are in dist/ already.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.packaging.distributions import DIST, build
from tests.packaging.environments import Environment, NotMade, installed, make
from tests.packaging.trials import BASE

_PYTEST = ("pytest", "pytest-timeout", "hypothesis", "polars", "duckdb")
_WITHOUT_TORCH = ("remote", "sign", "hf", "jax")
ENVIRONMENTS = (
    Environment("base", ("docs/records.md", "docs/cached.md")),
    Environment("base, lowest pins", pins="lowest"),
    Environment("base, Python 3.12", python="3.12"),
    Environment("base, Python 3.13", python="3.13"),
    Environment("extras, Python 3.12", _WITHOUT_TORCH, _WITHOUT_TORCH, python="3.12"),
    Environment("extras, Python 3.13", _WITHOUT_TORCH, _WITHOUT_TORCH, python="3.13"),
    Environment("torch", ("torch", "README.md", "docs/features.md", "docs/loading.md", "docs/report.md"), ("torch",)),
    Environment("compile", ("compile", "docs/compile.md"), ("compile",)),
    Environment("compile and remote", ("docs/remote.md",), ("compile", "remote")),
    Environment("sign", ("sign",), ("sign",)),
    Environment("remote", ("remote",), ("remote",)),
    Environment("pipeline", ("pipeline",), ("pipeline", "torch")),
    Environment("pipeline and remote", ("docs/pipeline.md",), ("pipeline", "remote", "torch")),
    Environment("quick starts", ("docs/start.md",), ("compile", "pipeline", "torch")),
    Environment("jax", ("jax",), ("jax",)),
    Environment("hf", ("hf",), ("hf",)),
    Environment("convert", ("hf", "hdf5", "array_record", "images"), ("convert",)),
    Environment("demo", ("demo",), ("demo",)),
    Environment("ray", ("ray",), ("ray",)),
    Environment("dali", (), ("dali",)),
    Environment(
        "extras, lowest pins",
        ("torch", "compile", "sign", "remote", "pipeline", "jax", "hf", "hdf5", "array_record", "images", "demo"),
        ("compile", "sign", "remote", "pipeline", "jax", "hf", "convert", "demo"),
        pins="lowest",
    ),
    Environment("ray, lowest pins", ("ray",), ("ray",), pins="lowest"),
    Environment("sdist's tests", pins="developed", extras=("torch", "compile", "remote", "sign"), others=_PYTEST,
                tests=("tests/native/test_floor.py", "tests/cli/test_store.py", "tests/storage")),
    Environment("sdist's tests, lowest pins", pins="lowest", extras=("compile", "demo", "pipeline", "remote", "sign"),
                others=_PYTEST, tests=("tests/native/test_floor.py", "tests/cli", "tests/storage",
                                       "--ignore=tests/cli/test_demo.py")),  # old packages warn in its output
)  # fmt: skip


def main(*names: str) -> int:
    if names and DIST.is_dir():
        (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    else:
        sdist, wheel = build()
    console = Console(highlight=False)
    table = Table("environment", "tried", "seconds", "result", title=f"{wheel.name}")
    failed = False
    for environment in ENVIRONMENTS:
        if names and environment.name not in names:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                result, tried = "ok", _tried(environment, sdist, wheel, Path(folder))
            except NotMade as error:
                result, tried = f"not made: {error}", ""
                failed = True
            except subprocess.CalledProcessError as error:
                text = f"{error.stdout or ''}\n{error.stderr or ''}"
                result, tried = "FAILED: " + " ".join(map(str, error.cmd[1:])) + "\n" + text.strip()[-3000:], ""
                failed = True
        console.print(f"{environment.name}: {result}", markup=False, soft_wrap=True)
        table.add_row(environment.name, tried, f"{time.perf_counter() - began:.0f}", result.splitlines()[0][:80])
    console.print(table)
    return int(failed)


def _tried(environment: Environment, sdist: Path, wheel: Path, folder: Path) -> str:
    """Make an environment, and try it. Returns what was tried."""
    python = make(environment, wheel, folder / "environment")
    variables = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        variables.pop(name, None)
    trials = Path(__file__).with_name("trials.py")
    for name in (*BASE, *environment.uses):
        place = folder / name.replace("/", "-")  # "compile" is not "docs/compile.md"
        place.mkdir()
        command = [python, trials, name]
        subprocess.run(command, cwd=place, env=variables, check=True, capture_output=True, text=True)
    tried = [*BASE, *environment.uses]
    if environment.tests:
        with tarfile.open(sdist) as file:
            file.extractall(folder, filter="data")
        (unpacked,) = folder.glob("warmstore-*")
        # The tests run with what is installed: the sources beside them have no compiled part.
        command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *environment.tests]
        if environment.pins == "lowest":  # what a package calls may be deprecated in the newest ones that it needs
            command += ["-W", "ignore::DeprecationWarning"]
        subprocess.run(command, cwd=unpacked, env=variables, check=True, capture_output=True, text=True)
        tried += environment.tests
    versions = installed(python)
    shown = [f"{name} {versions[name]}" for name in ("numpy", "pyarrow", "typer", "torch", "jax") if name in versions]
    return f"{', '.join(tried)} ({', '.join(shown)})"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
