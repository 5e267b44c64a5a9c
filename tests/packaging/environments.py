"""Empty environments with one wheel, and what of pyproject.toml and constraints.txt decides what else is in them."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.distributions import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_CONSTRAINTS = (ROOT / "constraints.txt").read_text()
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# An unconstrained request for torch takes a build with several GB of CUDA packages.
_TORCH = next(line for line in _CONSTRAINTS.splitlines() if line.startswith("torch=="))


@dataclass(frozen=True)
class Environment:
    """One environment, and what is tried in it.

    Attributes:
        name: Of the row of the table.
        uses: Names of `trials.USES`.
        extras: Of warmstore, installed with it.
        pins: "newest", what a resolver finds today; "lowest", the lowest versions that pyproject.toml allows;
            "developed", those of constraints.txt. torch is always the one of constraints.txt.
        python: The version; None for the one that runs this.
        others: More requirements.
        tests: Paths of tests of the unpacked sdist to run.
    """

    name: str
    uses: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    pins: str = "newest"
    python: str | None = None
    others: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def constraints(self) -> str:
        """The text of a file of constraints."""
        if self.pins == "developed":
            return _CONSTRAINTS
        if self.pins == "newest":
            return _TORCH + "\n"
        lines = {line for extra in (None, *self.extras) for line in lowest(extra)}
        return "\n".join([_TORCH, *sorted(lines)]) + "\n"


class Missing(Exception):
    """What an environment needs is not on this machine, or cannot be installed."""


def lowest(extra: str | None) -> list[str]:
    """The lowest versions that the requirements of an extra allow, as pins; of the base for None. Not torch's."""
    wanted = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    pins = []
    for requirement in wanted:
        name, _, rest = requirement.partition("[")
        if name == "warmstore":
            pins += [pin for below in rest.rstrip("]").split(",") for pin in lowest(below)]
            continue
        match = re.match(r"([\w.-]+)(?:\[[\w,]+\])?(?:(?:>=|==)([\w.]+))?", requirement)
        assert match is not None, requirement
        if match[2] and match[1] != "torch":
            pins.append(f"{match[1]}=={match[2]}")
    return pins


def python_of(version: str | None) -> Path:
    """A Python, in PATH or among those of pyenv.

    Raises:
        Missing: there is none.
    """
    if version is None:
        return Path(sys.executable)
    root = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    beside = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    for found in [*beside, *filter(None, [shutil.which(f"python{version}")])]:
        if subprocess.run([found, "-c", "import venv"], check=False, capture_output=True).returncode == 0:
            return Path(found)
    raise Missing(f"there is no Python {version} here")


def make(environment: Environment, wheel: Path, folder: Path) -> Path:
    """Install a wheel into an empty environment in a folder, and return its Python.

    Raises:
        Missing: it cannot be installed; the message is pip's.
    """
    python = folder / "bin/python"
    _ran([str(python_of(environment.python)), "-m", "venv", "--without-pip", str(folder)])
    constraints = folder / "constraints.txt"
    constraints.write_text(environment.constraints())
    what = f"{wheel}[{','.join(environment.extras)}]" if environment.extras else str(wheel)
    install = [
        *_PIP,
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-compile",
        "--constraint",
        str(constraints),
        what,
    ]
    _ran([*install, *environment.others])
    return python


def installed(python: Path) -> dict[str, str]:
    """The versions of what is installed, by name."""
    code = "from importlib.metadata import distributions as d; [print(one.name, one.version) for one in d()]"
    lines = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(line.split() for line in lines)


def _ran(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        raise Missing(" ".join(errors)[-400:])
