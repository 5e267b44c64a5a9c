"""Empty environments with one wheel, and what pyproject.toml and constraints.txt say of what else is in them.

uv installs them: it links what it has unpacked before, so an environment with torch takes seconds and little disk.
"""

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_CONSTRAINTS = ROOT / "constraints.txt"
_UV = (sys.executable, "-m", "uv", "--quiet", "--no-python-downloads")
# An unconstrained request for torch takes a build with several GB of CUDA packages.
_TORCH = next(line for line in _CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))


@dataclass(frozen=True)
class Environment:
    """One environment, and what is tried in it.

    Attributes:
        name: Of the row of the table.
        uses: Names of `trials.USES`.
        extras: Of warmstore, installed with it.
        pins: "newest", what a resolver finds today; "lowest", the lowest versions that pyproject.toml allows;
            "developed", those of constraints.txt. torch is always the one of constraints.txt.
        python: The version.
        others: More requirements.
        tests: Paths of tests of the unpacked sdist to run.
    """

    name: str
    uses: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    pins: str = "newest"
    python: str = "3.11"
    others: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


class NotMade(Exception):
    """What an environment needs is not on this machine, or cannot be installed."""


def requirements(*extras: str) -> list[str]:
    """What warmstore requires with some extras. Extras that name others are expanded."""
    found: list[str] = list(PROJECT["dependencies"])
    for extra in extras:
        for requirement in PROJECT["optional-dependencies"][extra]:
            name, _, rest = requirement.partition("[")
            found += requirements(*rest.rstrip("]").split(",")) if name == "warmstore" else [requirement]
    return sorted(set(found))


def make(environment: Environment, wheel: Path, folder: Path) -> Path:
    """Install a wheel into an empty environment in a folder, and return its Python.

    Raises:
        NotMade: there is no such Python here, or something cannot be installed; the message is uv's.
    """
    _run("venv", "--python", _python(environment.python), folder)
    constraints = folder / "constraints.txt"
    constraints.write_text(_CONSTRAINTS.read_text() if environment.pins == "developed" else f"{_TORCH}\n")
    extras = f"[{','.join(environment.extras)}]" if environment.extras else ""
    options = ["--python", folder, "--constraint", constraints, "--only-binary", ":all:"]
    # Named one by one the requirements are direct ones; what they need in turn is the newest in both cases.
    direct = requirements(*environment.extras)
    resolution = "lowest-direct" if environment.pins == "lowest" else "highest"
    _run("pip", "install", *options, "--resolution", resolution, f"{wheel}{extras}", *direct)
    if environment.others:
        _run("pip", "install", *options, *environment.others)
    return folder / "bin/python"


def installed(python: Path) -> dict[str, str]:
    """The versions of what is installed, by name."""
    code = "from importlib.metadata import distributions as d; [print(one.name, one.version) for one in d()]"
    lines = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def _python(version: str) -> str | Path:
    """What uv is told: the path of one of pyenv's, at whose shims it stops, or the version, which it looks for."""
    root = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    return next(iter(sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True)), version)


def _run(*words: str | Path) -> None:
    # A folder of wheels that pip is told of is told to uv.
    links = os.environ.get("UV_FIND_LINKS") or ",".join(os.environ.get("PIP_FIND_LINKS", "").split())
    variables = {**os.environ, **({"UV_FIND_LINKS": links} if links else {})}
    done = subprocess.run([*_UV, *words], capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise NotMade(" ".join(done.stderr.split())[-600:])
