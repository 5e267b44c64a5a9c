"""`warmstore store convert`, `export` and `inspect`, as a user sees them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.cli.runner import runner

import warmstore as ws
from warmstore.cli import app


def run(*arguments: object, columns: int = 80) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one command."""
    environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
    result = runner().invoke(app, [str(one) for one in arguments], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    np.savez(
        tmp_path / "x.npz", image=np.arange(48, dtype=np.uint8).reshape(4, 3, 4), label=np.arange(4), half=np.ones(4)
    )
    assert run("store", "convert", tmp_path / "x.npz", tmp_path / "store")[0] == 0
    return tmp_path / "store"


def test_convert_and_export_from_the_shell(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000))

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run(
            [sys.executable, "-m", "warmstore", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    done = command("store", "convert", "x.npy", "store")
    assert (done.returncode, done.stderr) == (0, "")  # no bar where nobody watches
    assert re.match(r"store: 1,000 records, \d+\.\d kB\n", done.stdout)
    done = command("store", "convert", "x.npy", "other", "--progress")
    assert "1.00k/1.00k" in done.stderr
    done = command("store", "export", "store", "y.npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.arange(1000))
    done = command("store", "inspect", "store")
    assert "1,000 records" in done.stdout
    assert "\x1b" not in done.stdout


def test_fields_and_formats_are_options(store: Path, tmp_path: Path) -> None:
    assert run("store", "export", store, tmp_path / "out", "-f", "label", "-f", "image")[0] == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["image.npy", "label.npy"]
    assert run("store", "convert", tmp_path / "x.npz", tmp_path / "one", "--field", "label", "--format", "npz")[0] == 0
    with ws.RecordStore.open(tmp_path / "one") as made:
        assert list(made.fields) == ["label"]
    assert run("store", "export", tmp_path / "one", tmp_path / "data", "--format", "parquet")[0] == 0
    assert run("store", "convert", tmp_path / "data", tmp_path / "two", "--format", "parquet")[0] == 0
    code, said, _ = run("store", "convert", *sorted((tmp_path / "out").glob("*.npy")), tmp_path / "three")
    assert code == 0
    assert ": 4 records" in said


def test_images_are_decoded_to_a_size(tmp_path: Path) -> None:
    image: Any = pytest.importorskip("PIL.Image")
    (tmp_path / "in" / "a").mkdir(parents=True)
    image.new("RGB", (9, 8)).save(tmp_path / "in" / "a" / "1.png")
    assert run("store", "convert", tmp_path / "in", tmp_path / "store", "--decode", "--size", "4x5")[0] == 0
    with ws.RecordStore.open(tmp_path / "store") as made:
        assert made.fields["image"] == ws.Array("uint8", (4, 5, 3))
    code, _, error = run("store", "convert", tmp_path / "in", tmp_path / "other", "--decode", "--size", "big")
    assert (code, error.count("\n")) == (2, 1)
    assert "'big'" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("store", "convert", "no.npy", "new"), "no.npy does not exist"),
        (("store", "inspect", "nothing"), "nothing is not a warmstore store"),
        (("store", "export", "nothing", "x.npy"), "nothing is not a warmstore store"),
        (("store", "convert", "x.npz", "new", "--format", "nope"), "there is no format 'nope'"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = run(*arguments)
    assert (code, out) == (1, "")
    assert error.startswith(f"Error: {said}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("columns", [80, 120])
def test_inspect_shows_all_and_fits(store: Path, columns: int) -> None:
    code, said, _ = run("store", "inspect", store, columns=columns)
    assert code == 0
    lines = said.splitlines()
    assert all(len(line) <= columns for line in lines[1:] if not line.startswith(" converted"))  # a path may be long
    for part in (
        "4 records",
        "no live writers",
        "uint8 [3, 4]",
        "int64",
        "g0001/000000.arrow",
        "sealed",
        "[3, 4] 0, 1, 2",
    ):
        assert part in said, part
    assert " converted: from npz " in said
    assert "complete" in said


def test_inspect_as_json_is_all_of_it(store: Path) -> None:
    code, said, _ = run("store", "inspect", store, "--json", "--samples", "1")
    found = json.loads(said)
    assert code == 0
    assert found["records"] == 4
    assert found["bytes"] == sum(512 * path.lstat().st_blocks for path in (store, *store.rglob("*")))
    assert [(field["name"], field["bytes"]) for field in found["fields"]] == [
        ("image", 4 * 12 + 4 * 8),
        ("label", 4 * 8 + 4 * 8),
        ("half", 4 * 8 + 4 * 8),
    ]
    assert len(found["samples"]) == 1
    chunk = found["chunks"][0]
    assert (chunk["state"], chunk["records"], chunk["batches"], chunk["writing"]) == ("sealed", 4, 1, False)


def test_metadata_may_have_the_names_that_caches_use(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}, metadata={"structure": "crystal"}) as made:
        made.append({"x": 1})
    code, said, _ = run("store", "inspect", tmp_path / "s")
    assert code == 0
    assert 'structure: "crystal"' in said
    assert json.loads(run("store", "inspect", tmp_path / "s", "--json")[1])["cache"] is None


def test_control_characters_of_names_are_escaped(tmp_path: Path) -> None:
    store = tmp_path / "a\x1b]0;title\x07"
    fields = {"x\x1b[2J": ws.Text()}
    with ws.RecordStore.create(store, fields, metadata={"by\x1b[1m": "me\x9b1m"}) as made:
        made.extend({"x\x1b[2J": ["value\x1b[7m"]})
    for columns in (20, 200):
        for command in (
            ("store", "inspect", store),
            ("ls", tmp_path),
            ("verify", tmp_path),
            ("store", "verify", store),
        ):
            code, said, error = run(*command, columns=columns)
            assert code == 0
            assert not {character for character in said + error if not character.isprintable()} - {"\n"}
    assert r"x\x1b[2J" in run("store", "inspect", store, columns=200)[1]
    assert r"a\x1b]0;title" in run("store", "inspect", store / "none", columns=200)[2]


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    metadata = {"loss": float("nan"), "range": [0.5, float("inf")]}
    ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}, metadata=metadata).close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    _, said, _ = run("store", "inspect", tmp_path / "s", "--json")
    assert json.loads(said, parse_constant=refuse)["metadata"] == {"loss": None, "range": [0.5, None]}


def test_inspect_tells_live_writers_from_dead_chunks(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fields: Any = {"x": ws.Array("int64"), "t": ws.Text(), "j": ws.Json(), "b": ws.Bytes(), "r": ws.Ragged("int8")}
    row = {"x": 1, "t": "long " * 50, "j": {"a": [1]}, "b": b"\x00" * 50, "r": np.arange(9, dtype=np.int8)}
    with ws.RecordStore.create(path, fields) as writer:
        writer.append(row)
        writer.flush()
        found = json.loads(run("store", "inspect", path, "--json")[1])
        assert found["writers"] == 1
        assert [chunk["state"] for chunk in found["chunks"]] == ["open"]
        assert "being written" in run("store", "inspect", path)[1]
        writer.append(row)
        writer.flush()  # looking did not take the chunk from its writer
        assert writer._snapshot.rows == 2
        assert len(set(writer._snapshot.chunk.tolist())) == 1
    found = json.loads(run("store", "inspect", path, "--json")[1])
    assert found["writers"] == 0
    assert [chunk["state"] for chunk in found["chunks"]] == ["sealed"]
    sample = found["samples"][0]
    assert sample["t"].startswith("'long long")
    assert all(len(value) <= 60 for value in sample.values())
    assert sample["r"] == "[9] 0, 1, 2, 3, 4, 5, ..."
    next(path.rglob("*.arrow")).unlink()
    code, said, _ = run("store", "inspect", path)
    assert code == 0
    assert "missing" in said
    assert "damaged" in said


def test_rebalance_leaves_one_record_of_each_sample_of_a_cache(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id") as cache:
        for value in range(2):
            cache.put_batch([1, 2, 3], np.full((3, 2), value))
            cache.flush()
        del cache[2]
    code, said, _ = run("store", "rebalance", tmp_path / "id", "--json", "--no-progress")
    assert (code, json.loads(said)["records"]) == (0, 2)
    with ws.FeatureCache(tmp_path, "id") as cache:
        values, missing = cache.get_batch([1, 2, 3])
        assert (values.tolist(), missing.tolist()) == ([[1, 1], [1, 1]], [1])
