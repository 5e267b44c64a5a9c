"""Disk tiers of every format that were written once: samples are read as they were, or computed, and never wrong.

When a test of the present format fails, what reads the tiers people have is broken: raise the format, and freeze
tiers of the new one.
"""

import json
import shutil
from pathlib import Path

import pytest
from tests.frozen.specimens import PIPELINES, plan_for
from tests.frozen.test_specimens import found, ran
from tests.frozen.tiers import HERE, NAMES, tier_of
from tests.slow import thinned

from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.tiers.tier_about import FORMAT
from warmstore.pipeline.tiers.tier_folders import tier_folder, version_name

__all__ = ["ran"]
pytestmark = pytest.mark.forks

FROZEN = [5, 6]


def copied(version: int, name: str, folder: Path) -> tuple[Plan, list[Path]]:
    """A plan of the program as it is now, and its versions with the frozen samples, whatever named them then."""
    shutil.copytree(tier_of(version, name), folder)
    pipe = PIPELINES[name]()
    steps = pipe.identities.descriptions()
    plan = plan_for(name, pipe, folder)
    versions = []
    for placement in plan.placements:
        (old,) = tier_folder(folder).glob(f"{placement.step}-{placement.codec}-*")
        now = version_name(placement.step, placement.codec, steps[: placement.step])
        versions.append(old.rename(old.with_name(now)))
    return plan, versions


def test_the_present_format_is_frozen() -> None:
    assert FORMAT in FROZEN, "run `python -m tests.frozen.tiers` and commit what it writes"
    assert sorted(path.name for path in HERE.glob("tiers-*")) == [f"tiers-{version}" for version in FROZEN]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", FROZEN)
def test_frozen_samples(version: int, name: str, tmp_path: Path, ran: dict[int, set[int]]) -> None:
    plan, versions = copied(version, name, tmp_path / "cache")
    said = found(PIPELINES[name](), plan, ran)
    assert said == (["hit"] if version == FORMAT else ["miss"]) * len(versions)
    assert found(PIPELINES[name](), plan, ran) == ["hit"] * len(versions)


@pytest.mark.parametrize("other", thinned(3, [FORMAT - 1, FORMAT + 1, None, "text"]))
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_another_format_are_computed(
    name: str, other: object, tmp_path: Path, ran: dict[int, set[int]]
) -> None:
    plan, versions = copied(FORMAT, name, tmp_path / "cache")
    for path in versions:
        about = json.loads((path / "about.json").read_text())
        about.pop("checksum", None)
        about["format"] = other
        (path / "about.json").write_text(json.dumps(about))
    assert found(PIPELINES[name](), plan, ran) == ["miss"] * len(versions)
    assert found(PIPELINES[name](), plan, ran) == ["hit"] * len(versions)
    assert all(json.loads((path / "about.json").read_text())["format"] == FORMAT for path in versions)
