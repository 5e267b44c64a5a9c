"""`~` at the beginning of a path is the home folder, wherever a path is given."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import warmstore as ws

FIELDS = {"number": ws.Array("int64")}


def records() -> None:
    with ws.RecordStore.create("~/store", FIELDS) as store:
        store.extend({"number": [1, 2]})
        store.push("~/remote", progress=False)
        ws.export(store, "~/numbers.npy")
    with ws.RecordStore.open("~/store") as store:
        assert len(store) == 2
    assert np.load(Path.home() / "numbers.npy").tolist() == [1, 2]
    url = (Path.home() / "remote").as_uri()
    with ws.RecordStore.clone(url, "~/clone", progress=False), ws.RecordStore.open(url, cache_dir="~/blocks") as copy:
        assert len(copy) == 2


def conversions() -> None:
    np.save(Path.home() / "one.npy", np.arange(3))
    np.save(Path.home() / "two.npy", np.arange(3))
    with ws.convert("~/*.npy", "~/converted", progress=False) as store:
        assert store.fields.keys() == {"one", "two"}
    with ws.convert(["~/two.npy", Path("~/one.npy")], "~/other", progress=False) as store:
        assert len(store) == 3


def loaders() -> None:
    np.save(Path.home() / "one.npy", np.arange(3))
    with ws.Loader("~/one.npy", 3) as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2]


def feature_caches() -> None:
    with ws.FeatureCache("~/caches", "c") as cache, ws.FeatureCache("~/more", "c") as more:
        more.put_batch([1], torch.ones(1, 2))
        more.flush()
        cache.merge("~/more/c", progress=False)
        assert 1 in cache


def cached_functions() -> None:
    @ws.cached("~/results")
    def twice(number: int) -> int:
        return 2 * number

    assert twice(2) == 4


def pipelines() -> None:
    pipe = ws.Pipeline(list(range(40)), root="~").step(abs).filter(bool, folder="~/answers")
    profile = pipe.profile(folder="~/tiers", seconds=0.1, max_workers=1, progress=False)
    plan = pipe.plan(profile=profile, memory="1MB", disk="1MB", folder="~/tiers", progress=False)
    plan.plot("~/plan.png")
    with pipe.loader(plan, 13, workers=0) as loader:
        assert sum(len(batch) for batch in loader) == 39
    assert (Path.home() / "plan.png").exists()


@pytest.mark.parametrize(
    "use", [records, conversions, loaders, feature_caches, cached_functions, pipelines], ids=lambda use: use.__name__
)
def test_the_home_folder(use: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    use()
    assert os.listdir(home)  # noqa: PTH208
    assert not os.listdir(here)  # noqa: PTH208


def test_a_user_who_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"'~nobody-is-this/store' is no path.*'\./~nobody-is-this/store'"):
        ws.RecordStore.open("~nobody-is-this/store")
