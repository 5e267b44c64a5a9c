"""Remotes that were written once: what hosts of today read from them, and add to them.

When a test here fails, remotes that teams have cannot be read: raise the format, and freeze a remote of the new one.
"""

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from tests.faults.damage import different
from tests.frozen import remotes
from tests.frozen.make import CACHE, FINGERPRINT, IDS, opened_cache, outputs, put
from tests.frozen.remotes import HERE, TIERS, remote_of
from tests.frozen.specimens import PIPELINES, plan_for
from tests.frozen.test_frozen import check_cache, equal

import warmstore as ws
from warmstore.identity.identity import RULES
from warmstore.replicate.parts import FORMAT
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import verify

pytestmark = [pytest.mark.forks, pytest.mark.remotes, pytest.mark.usefixtures("untouched")]

FROZEN = [3]
RULES_OF = {3: 1}
"""The rules of identity by which the samples in each specimen count."""
ALL = list(range(len(IDS)))


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a host keeps of logs: none of another test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mirror"))


def test_the_present_format_is_frozen() -> None:
    assert FORMAT in FROZEN, "run `python -m tests.frozen.remotes` and commit what it writes"
    assert sorted(path.name for path in HERE.glob("remote-*")) == [f"remote-{version}" for version in FROZEN]


@pytest.mark.parametrize("version", FROZEN)
def test_they_hold_what_they_are_to_show(version: int) -> None:
    names = [path.name for path in (remote_of(version) / CACHE).rglob("*") if path.is_file()]
    assert any(name.startswith("s-") for name in names), "segments"
    assert any(name.startswith("h0") for name in names), "heads"


@pytest.mark.parametrize("name", ["store", CACHE])
@pytest.mark.parametrize("version", FROZEN)
def test_nothing_is_missing(version: int, name: str) -> None:
    assert verify(Remote(remote_of(version) / name), deep=True).ok


@pytest.mark.parametrize("version", FROZEN)
def test_a_record_store(version: int, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shutil.copytree(remote_of(version) / "store", remote)
    story = remotes.store(tmp_path / "now", tmp_path / "other")
    with closing(ws.RecordStore.clone(remote, tmp_path / "copy")) as copy:
        assert different(copy, story.records) == ("", set())
    with closing(ws.RecordStore.open(remote.as_uri(), cache_dir=tmp_path / "read")) as there:
        assert different(there, story.records) == ("", set())
    with closing(ws.RecordStore.open(tmp_path / "copy", "a")) as copy:
        copy.extend(story.columns(range(20, 23)))
        copy.push(remote)
    with closing(ws.RecordStore.clone(remote, tmp_path / "again")) as again:
        assert different(again, story.records + [story.value(number) for number in range(20, 23)]) == ("", set())


@pytest.mark.parametrize("version", FROZEN)
def test_a_cache_of_nine_hosts(version: int, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    shutil.copytree(remote_of(version), remote)
    with opened_cache(tmp_path / "new host") as cache:
        cache._bind(FINGERPRINT)
        assert cache.pull(remote).records == len(ALL)
        check_cache(cache, ALL)
        cache.put_batch(["new"], outputs([3]))
        cache.push(remote)
    with opened_cache(tmp_path / "another") as cache:
        cache._bind(FINGERPRINT)
        put(cache, [0])
        cache.pull(remote)
        check_cache(cache, ALL[::-1])
        values, missing = cache.get_batch(["new"])
        assert not len(missing)
        assert equal(values, outputs([3]))
    with opened_cache(tmp_path / "of other weights") as cache:
        cache._bind({**FINGERPRINT, "weights": "other"})
        with pytest.raises(ws.StaleCache, match="weights"):
            cache.pull(remote)
    assert verify(Remote(remote / CACHE), deep=True).ok


@pytest.mark.parametrize("version", FROZEN)
def test_tiers_of_a_pipeline(version: int, tmp_path: Path) -> None:
    """Read, or computed where a step counts otherwise today; right in either case."""
    pipe = PIPELINES[TIERS]()
    plan = plan_for(TIERS, pipe, tmp_path / "tiers")
    with pipe.loader(None, 4, workers=0) as loader:
        uncached = list(loader)
    pulled = pipe.pull(remote_of(version) / "tiers", plan)
    filled = pipe.fill(plan, workers=0, progress=False)
    assert filled.found == pulled.records
    assert (pulled.records > 0) == (RULES_OF[version] == RULES)
    with pipe.loader(plan, 4, workers=0) as loader:
        assert equal(list(loader), uncached)
