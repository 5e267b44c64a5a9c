"""What `make check-wheels` finds with empty environments, as far as it shows without any."""

import email
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packaging import distributions
from tests.packaging.__main__ import ENVIRONMENTS
from tests.packaging.environments import PROJECT, ROOT, requirements
from tests.packaging.trials import USES

from warmstore.extras import EXTRAS


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of metadata that every build begins with."""
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder / "warmstore.egg-info"


def test_the_package_page_has_absolute_links_to_files_that_exist(described: Path) -> None:
    page = email.message_from_string((described / "PKG-INFO").read_text())
    distributions.check_metadata(page)
    home = PROJECT["urls"]["Source"]
    files = re.findall(rf"\]\({home}/(?:blob|raw)/main/([^)#]+)", page.get_payload())
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).exists()]


def test_the_sdist_has_what_its_tests_read(described: Path) -> None:
    sources = set((described / "SOURCES.txt").read_text().split())
    command = ["git", "ls-files"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    needed = {*distributions.NEEDED, *tracked} - {".gitignore"}
    assert not [name for name in sorted(needed - sources) if (ROOT / name).exists()]


def test_every_requirement_of_users_has_a_lowest_version() -> None:
    """Those of developers and trainers need none: their versions are pinned."""
    wanted = requirements("pipeline", *{*EXTRAS.values()} - {"trainers"})
    assert len(wanted) > 20
    assert not [one for one in wanted if ">=" not in one]


_DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "nvidia": "nvidia-dali-cuda120"}


@pytest.mark.parametrize("package", EXTRAS)
def test_each_package_is_brought_by_the_extra_that_errors_name(package: str) -> None:
    brought = [re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"][EXTRAS[package]]]  # type: ignore[index]
    assert _DISTRIBUTIONS.get(package, package).replace("_", "-") in brought


def test_trials_use_what_extras_bring() -> None:
    assert {package for _, packages in USES.values() for package in packages} <= set(EXTRAS)
    uses = {use for environment in ENVIRONMENTS for use in environment.uses}
    assert {use for use in uses if not use.endswith(".md")} == set(USES)
    for environment in ENVIRONMENTS:
        assert {*environment.extras} <= set(PROJECT["optional-dependencies"])
