"""`warmstore ls`, `du`, `gc`, `verify`, `diff` and `doctor`, as a user sees them."""

import json
from pathlib import Path

import pytest
from tests.cli.test_features import run
from tests.inventory.making import compiled, features, pipeline, store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store, a feature cache and a compile cache, which alone are known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(tmp_path / "all" / "compiled"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store(tmp_path / "all")
    (tmp_path / "all").rename(tmp_path / "moved")
    (tmp_path / "all").mkdir()
    (tmp_path / "moved").rename(tmp_path / "all" / "photos")
    features(tmp_path / "all" / "caches", "net")
    compiled(tmp_path / "all" / "compiled")
    return tmp_path / "all"


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_ls_cuts_nothing_off(folder: Path, columns: int) -> None:
    code, said, _ = run("ls", folder, columns=columns)
    assert code == 0
    whole = "".join(said.split())
    for path in (folder / "photos", folder / "caches" / "net", folder / "compiled"):
        assert str(path) in whole
    assert f"  warmstore gc {folder / 'caches' / 'net'} --older-than 0s\n" in said
    assert f"  warmstore compiled clear --dir {folder / 'compiled'}\n" in said
    assert f"  warmstore gc {folder / 'photos'} --older-than 0s --include-data   # may exist nowhere else\n" in said
    assert "…" not in said
    assert ("kind: features" in said) == (columns == 40)  # where no table fits


def test_ls_in_a_pipe_has_lines_that_are_as_long_as_they_need_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from warmstore.cli.across import ls

    monkeypatch.delenv("COLUMNS", raising=False)
    ls([folder])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.rstrip().endswith(str(folder / "caches" / "net")) for line in lines[:-4]) == 1
    assert "\x1b" not in "".join(lines)


def test_columns_of_zero_are_none(folder: Path) -> None:
    code, said, _ = run("ls", folder, columns=0)
    assert code == 0
    assert max(map(len, said.splitlines())) > 80
    for name in ("photos", "caches/net", "compiled"):
        assert str(folder / name) in said


def test_what_frees_a_folder_frees_it(folder: Path) -> None:
    for found in json.loads(run("ls", folder, "--json")[1]):
        if found["kind"] != "compiled":
            assert run(*found["free"].split()[1:], "--yes")[0] == 0
            assert not Path(found["path"]).exists()
        else:
            assert run(*found["free"].split()[1:], "--yes")[0] == 0
    assert [found["entries"] for found in json.loads(run("ls", folder, "--json")[1])] == [0]


def test_what_frees_one_version_leaves_the_others(tmp_path: Path) -> None:
    first = features(tmp_path, "net")
    second = features(tmp_path, "net", 2.0, versions="new")
    found = {one["path"]: one["free"] for one in json.loads(run("ls", tmp_path, "--json")[1])}
    assert run(*found[str(first)].split()[1:], "--yes")[0] == 0
    assert not first.exists()
    assert second.exists()


def test_ls_without_folders_is_all_that_is_known(folder: Path) -> None:
    found = {one["path"] for one in json.loads(run("ls", "--json")[1])}
    assert {str(folder / "caches" / "net"), str(folder / "compiled")} <= found


def test_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    assert run("ls", tmp_path)[:2] == (0, "There are no stores and caches.\n")
    assert json.loads(run("ls", tmp_path, "--json")[1]) == []
    assert run("verify", tmp_path)[:2] == (1, "There are no stores and caches.\n")
    code, _, error = run("ls", tmp_path / "nowhere")
    assert (code, error) == (1, f"Error: {tmp_path / 'nowhere'} is not a folder\n")


def test_du_adds_up(folder: Path) -> None:
    found = json.loads(run("du", folder, "--json")[1])
    listed = json.loads(run("ls", folder, "--json")[1])
    assert found["total"]["bytes"] == sum(one["bytes"] for one in listed)
    assert found["total"]["removable"] == found["total"]["bytes"] - found["store"]["bytes"]
    assert "feature caches" in run("du", folder)[1]


def test_a_damaged_store_is_nothing_to_free(folder: Path) -> None:
    (folder / "photos" / "store.json").write_bytes(b"{")
    (found,) = json.loads(run("ls", folder / "photos", "--json")[1])
    assert (found["free"], bool(found["problem"])) == (None, True)
    assert "To free" not in run("ls", folder / "photos")[1]
    usage = json.loads(run("du", folder / "photos", "--json")[1])["total"]
    assert (usage["bytes"], usage["removable"]) == (found["bytes"], 0)


class TestGc:
    def test_a_dry_run_removes_nothing(self, folder: Path) -> None:
        before = run("ls", folder, "--json")[1]
        code, said, _ = run("gc", folder, "--older-than", "0s", "--dry-run")
        assert code == 0
        assert "may exist nowhere else, and stay" in said
        assert "Freed" not in said
        planned = json.loads(run("gc", folder, "--older-than", "0s", "--dry-run", "--json")[1])
        assert planned["bytes"] == sum(one["bytes"] for one in planned["removals"]) > 0
        assert planned["data"] == [str(folder / "photos")]
        assert run("ls", folder, "--json")[1] == before

    def test_asks(self, folder: Path) -> None:
        code, said, _ = run("gc", folder, "--max-size", "1kB", answer="n\n")
        assert code == 1
        assert said.endswith("Nothing was removed.\n")
        code, said, _ = run("gc", folder, "--max-size", "1kB", answer="y\n")
        assert code == 0
        assert "Freed " in said
        kinds = {one["kind"]: one["entries"] for one in json.loads(run("ls", folder, "--json")[1])}
        assert kinds == {"store": 10, "compiled": 0}

    def test_nobody_is_asked_where_nothing_goes(self, folder: Path) -> None:
        code, said, _ = run("gc", folder, "--older-than", "1d")
        assert code == 0
        assert said.startswith("0 B to free")

    def test_in_json_alone(self, folder: Path) -> None:
        code, said, _ = run("gc", folder, "--older-than", "0s", "--include-data", "--yes", "--json")
        assert code == 0
        assert json.loads(said)["failures"] == []
        assert not (folder / "photos").exists()

    def test_says_what_it_needs(self, folder: Path) -> None:
        code, _, error = run("gc", folder)
        assert code != 0
        assert "--older-than, --max-size or both" in error


def test_verify_finds_damage(folder: Path) -> None:
    code, said, _ = run("verify", folder)
    assert code == 0
    assert said.count("match their checksums") == 2
    assert f"{folder / 'compiled'}: 3 artifacts are whole\n" in said
    chunk = next((folder / "photos").rglob("*.arrow"))
    chunk.write_bytes(bytes(chunk.stat().st_size))
    code, said, _ = run("verify", folder)
    assert code == 1
    assert f"  warmstore store verify {folder / 'photos'} --repair\n" in said
    code, said, _ = run("verify", folder, "--json")
    assert code == 1
    assert [one["ok"] for one in json.loads(said)].count(False) == 1


def test_diff_names_what_differs(folder: Path) -> None:
    other = features(folder / "others", "net", 2.0)
    code, said, _ = run("diff", folder / "caches" / "net", other)
    assert code == 1
    assert "factor" in said
    found = json.loads(run("diff", folder / "caches" / "net", other, "--json")[1])
    assert found["kind"] == "features"
    assert found["differences"]
    assert run("diff", other, other)[0] == 0


def test_doctor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said, _ = run("doctor", "--json")
    found = json.loads(said)
    assert code == int(not all(one["ok"] for one in found))
    assert {"warmstore", "compiled part", "registry"} <= {one["name"] for one in found}
    assert "compiled part" in run("doctor", columns=40)[1]


@pytest.mark.parametrize("columns", [20, 200])
def test_titles_are_no_markup(tmp_path: Path, columns: int) -> None:
    pipeline(tmp_path / "a[/b] [old]")
    code, said, _ = run("pipelines", "ls", tmp_path / "a[/b] [old]", columns=columns)
    assert code == 0
    assert "a[/b][old]" in "".join(said.split())


def test_pipelines_are_listed_by_version(folder: Path) -> None:
    pipeline(folder / "plans")
    (found,) = [one for one in json.loads(run("ls", folder, "--json")[1]) if one["kind"] == "pipeline"]
    assert found["free"].startswith(f"warmstore pipelines clear {folder / 'plans' / 'warmstore-samples'} 1-raw-")
    assert run(*found["free"].split()[1:], "--yes")[0] == 0
    assert not Path(found["path"]).exists()
