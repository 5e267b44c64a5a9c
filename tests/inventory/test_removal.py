"""What a garbage collection chooses, and that the removal of each kind leaves everything else."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compiling.environments import HERE
from tests.inventory.making import compiled, disk_plan, features, functions, pipeline, states, store, tripled

import warmstore as ws
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import ReadOnly, StoreExists
from warmstore.features.cache_inspection import clear
from warmstore.inventory.cached_folder import CachedFolder
from warmstore.inventory.removal import plan_removals, remove
from warmstore.storage.files import Files

NOW = 1_000_000.0


def folder(name: str, age: float, nbytes: int = 100, **more: Any) -> CachedFolder:
    return CachedFolder(more.pop("kind", "features"), Path(f"/{name}"), nbytes=nbytes, used=NOW - age, **more)


def chosen(*folders: CachedFolder, **options: Any) -> str:
    plan = plan_removals(folders, now=NOW, **options)
    return " ".join(removal.folder.path.name for removal in plan.removals)


class TestPlan:
    def test_by_age(self) -> None:
        folders = folder("a", 10), folder("b", 30), folder("c", 20)
        assert chosen(*folders, older_than=20) == "b c"
        assert chosen(*folders, older_than=31) == ""
        assert chosen(*folders, older_than=0) == "b c a"

    def test_what_was_used_before_the_clock_was_set_back_is_of_no_age(self) -> None:
        folders = folder("a", -3600), folder("data", -3600, is_data=True)
        assert chosen(*folders, older_than=0) == "a"
        assert chosen(*folders, older_than=1) == ""
        assert [one.path.name for one in plan_removals(folders, now=NOW, older_than=0).data] == ["data"]

    def test_by_size_the_least_recently_used_go_first(self) -> None:
        folders = folder("a", 10), folder("b", 30), folder("c", 20)
        assert chosen(*folders, max_size=300) == ""
        assert chosen(*folders, max_size=299) == "b"
        assert chosen(*folders, max_size=100) == "b c"
        assert chosen(*folders, max_size=1) == "b c a"
        assert plan_removals(folders, now=NOW, max_size=100).left == 100

    def test_by_both(self) -> None:
        folders = folder("a", 10), folder("b", 30), folder("c", 20)
        assert chosen(*folders, older_than=25, max_size=1000) == "b"
        assert chosen(*folders, older_than=25, max_size=100) == "b c"

    def test_data_stays_and_does_not_count(self) -> None:
        folders = folder("a", 10), folder("data", 30, 1000, is_data=True), folder("c", 20)
        plan = plan_removals(folders, now=NOW, older_than=0, max_size=150)
        assert [one.path.name for one in plan.data] == ["data"]
        assert chosen(*folders, max_size=200) == ""
        assert chosen(*folders, max_size=150) == "c"
        assert chosen(*folders, max_size=150, include_data=True) == "data c"

    def test_what_is_in_use_stays_and_counts(self) -> None:
        folders = folder("a", 10), folder("busy", 30, in_use=True), folder("c", 20)
        plan = plan_removals(folders, now=NOW, max_size=100)
        assert chosen(*folders, max_size=100) == "c a"
        assert [one.path.name for one in plan.in_use] == ["busy"]
        assert plan.left == 100

    def test_what_cannot_be_read_stays(self) -> None:
        assert chosen(folder("a", 10, problem="damaged"), older_than=0) == ""


class TestRemove:
    def all(self, tmp_path: Path, **options: Any) -> None:
        for removal in plan_removals(states(tmp_path), older_than=0, **options).removals:
            assert remove(removal) > 0

    def test_every_kind_of_cache_and_no_data(self, tmp_path: Path) -> None:
        path = store(tmp_path / "store")
        features(tmp_path / "caches", "net")
        with ws.FeatureCache(tmp_path / "caches", "put") as cache:
            cache.put_batch([1], np.ones((1, 3)))
        functions(tmp_path / "results")
        pipe = pipeline(tmp_path / "plans")
        compiled(tmp_path / "compiled")
        self.all(tmp_path)
        left = {(state.kind, state.path.name, state.entries) for state in states(tmp_path)}
        assert left == {("store", "store", 10), ("features", "put", 1), ("compiled", "compiled", 0)}
        with ws.RecordStore.open(path) as opened:
            assert opened["x"][:].tolist() == list(range(10))
        assert pipe.fill(disk_plan(pipe, tmp_path / "plans"), workers=0, progress=False).computed == 30
        pipe.close()
        self.all(tmp_path, include_data=True)
        assert [state.kind for state in states(tmp_path)] == ["compiled"]
        assert not path.exists()

    def test_of_a_compile_cache_the_least_recently_used_artifacts(self, tmp_path: Path) -> None:
        compiled(tmp_path)
        (state,) = states(tmp_path)
        size = 2 * 8192  # of two artifacts of 5,000 bytes, in whole blocks
        plan = plan_removals([state], max_size=state.nbytes - size)
        ((removal,)) = plan.removals
        assert (removal.entries, removal.nbytes, removal.whole) == (2, size, False)
        assert remove(removal) >= size
        with ArtifactStore(tmp_path) as left:
            assert [artifact.key for artifact in left.all()] == ["a"]  # which was used after all were put
            assert left.find("a", None, HERE) is not None

    @pytest.mark.parametrize("inner", ["store", "folder", "file"])
    def test_what_is_not_the_stores_stays(self, inner: str, tmp_path: Path) -> None:
        path = features(tmp_path, "net")
        if inner == "store":
            store(path / "labels")
        else:
            (path / "labels").mkdir() if inner == "folder" else (path / "labels").touch()
        assert [state.path.name for state in states(tmp_path)] == ["net", *["labels"] * (inner == "store")]
        (removal,) = plan_removals(states(tmp_path), older_than=0).removals
        with pytest.raises(StoreExists, match="also has 'labels', which is not the store's"):
            remove(removal)
        with ws.FeatureCache(tmp_path, "net") as cache:
            assert len(cache) == 4

    def test_what_a_process_reads_stays(self, tmp_path: Path) -> None:
        path, results = features(tmp_path / "caches", "net"), functions(tmp_path / "results")
        removals = plan_removals(states(tmp_path), older_than=0).removals
        function = ws.cached(tmp_path / "results")(tripled)
        function(1)
        with ws.FeatureCache(tmp_path / "caches", "net", read_only=True):
            assert [state.in_use for state in states(tmp_path)] == [True, True]
            for removal in removals:
                with pytest.raises(ReadOnly, match="is in use by a live process"):
                    remove(removal)
        function.cache.close()
        assert [state.in_use for state in states(tmp_path)] == [False, False]
        for removal in removals:
            assert remove(removal) > 0
        assert not path.exists()
        assert not results.exists()

    def test_a_link_goes_with_what_it_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "big").mkdir()
        features(tmp_path / "big", "net")
        (tmp_path / "caches").mkdir()
        (tmp_path / "caches" / "net").symlink_to(tmp_path / "big" / "net")
        clear(tmp_path / "caches" / "net")
        assert list(tmp_path.glob("*/*")) == list(tmp_path.glob("*/.*")) == []

    def test_what_a_killed_removal_left_goes_with_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = features(tmp_path, "net")
        with monkeypatch.context() as patch:
            patch.setattr(Files, "remove_folder", lambda self, folder: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                clear(path)
        assert not path.exists()
        assert [left.is_dir() for left in tmp_path.iterdir()] == [True]
        assert features(tmp_path, "net") == path
        clear(path)
        assert list(tmp_path.iterdir()) == []

    def test_artifacts_of_one_run_were_used_at_the_same_time(self, tmp_path: Path) -> None:
        with ArtifactStore(tmp_path) as made:
            made.used([made.put(str(at), "cpp.so", bytes([at]) * 200_000, environment=HERE) for at in range(5)])
        (state,) = states(tmp_path)
        plan = plan_removals([state], max_size=state.nbytes - 300_000)
        ((removal,)) = plan.removals
        assert removal.entries == 2
        assert plan.left == state.nbytes - removal.nbytes
        assert remove(removal) >= removal.nbytes
        with ArtifactStore(tmp_path) as left:
            assert [artifact.key for artifact in left.all()] == ["2", "3", "4"]

    def test_the_bytes_of_a_blob_go_with_the_last_of_its_artifacts(self, tmp_path: Path) -> None:
        with ArtifactStore(tmp_path) as made:
            for key in "abcd":
                made.put(key, "cpp.so", b"equal" * 200_000, environment=HERE)
        (state,) = states(tmp_path)
        plan = plan_removals([state], older_than=0)
        ((removal,)) = plan.removals
        assert (removal.entries, plan.left) == (4, state.nbytes - removal.nbytes)
        assert 1_000_000 <= removal.nbytes <= state.nbytes
        plan = plan_removals([state], max_size=state.nbytes - 1)
        assert plan.removals == (removal,)  # nothing less frees a byte
        assert remove(removal) >= removal.nbytes

    def test_artifacts_that_were_used_or_replaced_since_stay(self, tmp_path: Path) -> None:
        compiled(tmp_path)
        ((removal,)) = plan_removals(states(tmp_path), older_than=0).removals
        with ArtifactStore(tmp_path) as store:
            used = store.find("b", None, HERE)
            assert used is not None
            store.used([used])
            store.put("c", "cpp.so", b"new", environment=HERE)
            assert remove(removal) > 0
            assert [artifact.key for artifact in store.all()] == ["b", "c"]

    def test_what_came_into_use_since_stays(self, tmp_path: Path) -> None:
        features(tmp_path, "net")
        (removal,) = plan_removals(states(tmp_path), older_than=0).removals
        with ws.FeatureCache(tmp_path, "net") as cache:
            cache.put_batch([9], cache.get_batch([1])[0])
            cache.flush()
            with pytest.raises(ReadOnly, match="being written"):
                remove(removal)
        assert states(tmp_path)[0].entries == 5

    def test_a_pipeline_in_use_stays(self, tmp_path: Path) -> None:
        pipe = pipeline(tmp_path)
        (removal,) = plan_removals(states(tmp_path), older_than=0).removals
        with pipe.loader(disk_plan(pipe, tmp_path), 8, workers=0), pytest.raises(ReadOnly, match="in use"):
            remove(removal)
        assert remove(removal) > 0

    def test_a_copy_that_is_open_stays(self, tmp_path: Path) -> None:
        pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
        with ws.RecordStore.open(store(tmp_path / "store")) as opened:
            opened.push(tmp_path / "remote", progress=False)
        url = (tmp_path / "remote").as_uri()
        there = ws.RecordStore.open(url, cache_dir=tmp_path / "copies")
        (state,) = states(tmp_path / "copies")
        assert chosen(state, older_than=0) == ""
        there.close()
        (removal,) = plan_removals(states(tmp_path / "copies"), older_than=0).removals
        with ws.RecordStore.open(url, cache_dir=tmp_path / "copies"), pytest.raises(ReadOnly, match="in use"):
            remove(removal)
        assert remove(removal) > 0
        with ws.RecordStore.open(url, cache_dir=tmp_path / "copies") as again:
            assert again["x"][:].tolist() == list(range(10))

    def test_artifacts_that_were_used_before_the_clock_was_set_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiled(tmp_path / "compiled")
        (state,) = states(tmp_path)
        plan = plan_removals([state], max_size=1)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 86400)
        (removal,) = plan.removals
        assert remove(removal) > 0
        with ArtifactStore(tmp_path / "compiled") as store:
            assert not store.all()
