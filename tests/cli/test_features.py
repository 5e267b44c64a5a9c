"""`warmstore features stats`, `clear` and `inspect` of feature caches, as a user sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.runner import runner
from torch import nn

import warmstore as ws
from warmstore.cli import app
from warmstore.cli.features_view import rendered_structure
from warmstore.features.cache_inspection import find_caches, read_state


def run(*arguments: object, columns: int = 80, answer: str | None = None) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one command."""
    environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
    result = runner().invoke(app, [str(one) for one in arguments], env=environment, input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


class Model(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": (x * self.factor, x[:, 0]), "names": [f"n{value:g}" for value in x[:, 0]], "kind": "test"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The caches "a/b" in two versions, and "c"."""
    x = torch.arange(12.0).reshape(4, 3)
    for factor in (1.0, 2.0):
        with ws.FeatureCache(tmp_path / "caches", "a/b", versions="new", lists="per_sample") as cache:
            module = ws.CachedModule(Model(factor), cache)
            module(x, cache_ids=range(4))
            module(x, cache_ids=range(4))
            cache.put_batch([1], Model(factor)(x[:1]))
    with ws.FeatureCache(tmp_path / "caches", "c") as cache:
        cache.put_batch(["s"], torch.ones(1, 2))
    return tmp_path / "caches"


@pytest.mark.parametrize("columns", [80, 120])
def test_stats_of_a_folder_fit_and_are_whole(folder: Path, columns: int) -> None:
    code, said, _ = run("features", "stats", folder, columns=columns)
    assert code == 0
    lines = said.splitlines()
    assert all(len(line) <= columns for line in lines[1:])
    rows = [line.split() for line in lines if line.startswith((" a/b", " c "))]
    assert [row[0] for row in rows] == ["a/b", "a/b", "c"]
    assert rows[0][1] == "5"
    assert "50.0%" in rows[0]
    assert rows[1][1].startswith("@")
    assert rows[2][4] == "-"
    assert "Total: " in said


def test_stats_as_json(folder: Path) -> None:
    found = json.loads(run("features", "stats", folder / "a%2Fb", "--json")[1])
    assert [(one["id"], one["entries"], one["hits"], one["misses"]) for one in found] == [("a/b", 5, 4, 4)] * 2
    assert found[0]["seconds_saved"] == found[0]["computed_seconds"] > 0
    assert found[1]["version"].startswith("a%2Fb@")
    assert len(json.loads(run("features", "stats", folder / found[1]["version"], "--json")[1])) == 1


def test_the_working_directory_is_the_cache_of_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = find_caches(folder / "a%2Fb")[0]
    (cache / "below").mkdir()
    whole = run("features", "stats", cache, "--json")[1]
    for place, name in ((cache, "."), (cache / "below", "..")):
        monkeypatch.chdir(place)
        assert run("features", "stats", name, "--json") == (0, whole, "")


def test_inspect_recognises_a_cache(folder: Path) -> None:
    code, said, _ = run("store", "inspect", folder / "a%2Fb", columns=120)
    assert code == 0
    for part in (
        "a/b",
        '{"y": (float32 [3], float32), "names": [Json per sample], "kind": \'test\'}',
        "4 hits, 4 misses: 50.0%",
        "1: the last entry",
        " facts",
        "a%2Fb@",
    ):
        assert part in said, part
    found = json.loads(run("store", "inspect", folder / "a%2Fb", "--json")[1])["cache"]
    assert (found["duplicates"], len(found["versions"])) == (1, 2)
    assert "none: filled by put_batch alone" in run("store", "inspect", folder / "c")[1]
    assert "not used yet" in run("store", "inspect", folder / "c")[1]
    with ws.RecordStore.create(folder / "plain", {"x": ws.Array("int64")}):
        pass
    assert json.loads(run("store", "inspect", folder / "plain", "--json")[1])["cache"] is None


def test_inspect_of_a_damaged_cache(folder: Path) -> None:
    next(folder.glob("c/**/*.arrow")).unlink()
    code, said, _ = run("store", "inspect", folder / "c")
    assert code == 0
    assert "not known" in said


def test_inspect_does_not_count_bytes_of_evicted_samples(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "small", max_size="4MB") as cache:
        for first in range(0, 400, 20):
            cache.put_batch(range(first, first + 20), torch.rand(20, 5000))
            cache.flush()
        assert cache.stats().evicted
    _, said, _ = run("store", "inspect", tmp_path / "small", "--json")
    found = json.loads(said)
    assert 0 < found["records"] < 400
    assert [field["bytes"] / found["records"] for field in found["fields"]] == [16 + 8, 5000 * 4 + 8]


class TestClear:
    def test_asks(self, folder: Path) -> None:
        code, said, _ = run("features", "clear", folder / "a%2Fb", answer="n\n")
        assert code == 1
        assert "Nothing was removed" in said
        assert len(find_caches(folder)) == 3
        assert run("features", "clear", folder / "a%2Fb", answer="y\n")[0] == 0
        assert [path.name for path in folder.iterdir()] == ["c"]

    def test_one_version(self, folder: Path) -> None:
        _, version = find_caches(folder / "a%2Fb")
        assert run("features", "clear", version, "--yes")[0] == 0
        assert sorted(path.name for path in folder.iterdir()) == ["a%2Fb", "c"]

    def test_a_live_writer_keeps_its_cache(self, folder: Path) -> None:
        with ws.FeatureCache(folder, "c") as cache:
            cache.put_batch(["t"], torch.ones(1, 2))
            cache.flush()
            assert read_state(folder / "c").writers == 1
            code, _, error = run("features", "clear", folder / "c", "--yes")
        assert (code, error.count("\n")) == (1, 1)
        assert "being written" in error
        with ws.FeatureCache(folder, "c") as cache:
            assert len(cache) == 2

    def test_one_that_is_in_use_does_not_keep_the_others(self, folder: Path) -> None:
        first, second = find_caches(folder / "a%2Fb")
        with ws.FeatureCache(folder, "a/b") as cache:
            cache.put_batch([9], Model(1.0)(torch.ones(1, 3)))
            cache.flush()
            code, said, aside = run("features", "clear", folder, "--json", "--yes")
        found = json.loads(said)
        assert (code, found["removed"]) == (1, [str(second), str(folder / "c")])
        (failure,) = found["failures"]
        assert str(first) in failure
        assert f"Error: {failure}" in aside
        assert find_caches(folder) == [first]

    def test_in_json(self, folder: Path) -> None:
        code, said, aside = run("features", "clear", folder / "c", "--json", "--yes")
        found = json.loads(said)
        assert (code, found["removed"]) == (0, [str(folder / "c")])
        assert found["bytes"] > 0
        assert "1 entries" in aside

    def test_only_caches(self, folder: Path, tmp_path: Path) -> None:
        ws.RecordStore.create(tmp_path / "plain", {"x": ws.Array("int64")}).close()
        for path in (tmp_path / "plain", tmp_path / "nothing", folder / "plain"):
            code, _, error = run("features", "clear", path, "--yes")
            assert (code, error.count("\n")) == (1, 1)
        assert (tmp_path / "plain").is_dir()

    def test_stores_beside_caches_stay(self, folder: Path) -> None:
        ws.RecordStore.create(folder / "plain", {"x": ws.Array("int64")}).close()
        assert run("features", "clear", folder, "--yes")[0] == 0
        assert [path.name for path in folder.iterdir()] == ["plain"]


def test_caches_are_merged(folder: Path) -> None:
    with ws.FeatureCache(folder, "d") as cache:
        cache.put_batch(["s", "t"], torch.ones(2, 2))
    code, said, _ = run("features", "merge", folder / "c", folder / "d", "--no-progress")
    assert (code, said) == (0, f"{folder / 'c'}: 1 samples added, 1 were there\n")
    assert json.loads(run("features", "merge", folder / "c", folder / "d", "--json")[1])["added"] == 0
    code, _, error = run("features", "merge", folder / "c", folder / "a%2Fb")
    assert (code, error.count("\n")) == (1, 1)


def test_nothing_is_merged_into_a_folder_of_caches(folder: Path) -> None:
    code, said, error = run("features", "merge", folder, folder / "c")
    assert (code, said) == (1, "")
    assert error == f"Error: {folder} is a folder of caches; name one of them, such as {folder / 'a%2Fb'}\n"


def test_structures_of_every_kind(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id", lists="per_sample") as cache:
        output: Any = [torch.ones(2, 3), None, torch.max(torch.ones(2, 3), 1), [torch.ones(1), torch.ones(2)]]
        cache.put_batch([1, 2], {"a": tuple(output), 3: torch.ones(2)})
    assert rendered_structure(read_state(cache.path).schema) == (
        '{"a": (float32 [3], None, (float32, int64), [float32 [?] per sample]), 3: float32}'
    )


def test_structures_with_samples_in_other_dimensions(tmp_path: Path) -> None:
    class States(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, x[None, :, :2], torch.ones(2, 2)

    with ws.FeatureCache(tmp_path, "id") as cache:
        ws.CachedModule(States(), cache, out_dims=(0, 1, None))(torch.ones(4, 3), cache_ids=range(4))
    assert rendered_structure(read_state(cache.path).schema) == (
        "(float32 [3], float32 [1, 2], samples in dimension 1, float32 [2, 2] for all)"
    )
