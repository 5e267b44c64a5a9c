"""`warmstore remote`, as a user sees it."""

import json
import platform
from pathlib import Path

import pytest
from tests.cli.test_features import run
from tests.replicate.test_upkeep import folder, push

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

__all__ = ["folder"]


def test_commands(folder: Path, tmp_path: Path) -> None:
    push(tmp_path, "a", range(10))
    status, said, _ = run("remote", "verify", folder, "--json")
    found = json.loads(said)
    assert (status, found["ok"], found["hosts"][0]["chunks"]) == (0, True, 1)
    host = found["hosts"][0]["host"]
    assert host in run("remote", "verify", folder, "--deep")[1]
    said = run("remote", "gc", folder, "--keep", "7d", "--json")[1]
    assert json.loads(said) == {"objects": 0, "size": 0, "young": 0}
    assert "0 objects" in run("remote", "gc", folder, "--keep", "7d", "--dry-run")[1]
    assert "a day" in run("remote", "gc", folder, "--keep", "1h")[2]
    assert "1 parts are one now, with 10 samples" in run("remote", "merge", folder, "--work-dir", tmp_path)[1]
    assert json.loads(run("remote", "merge", folder, "--json")[1]) == {"parts": 1, "samples": 10}
    next(folder.rglob("chunks/*")).unlink()
    assert run("remote", "verify", folder)[0] == 1
    assert run("remote", "repair", folder)[0] == 0
    assert run("remote", "verify", folder)[0] == 0
    push(tmp_path, "a", range(0))
    status, said, _ = run("remote", "retire", folder, host, answer="n\n")
    assert (status, said.endswith("Nothing was forgotten.\n")) == (1, True)
    assert f"{host} (" in said
    assert "no longer listed" in run("remote", "retire", folder, host, answer="y\n")[1]
    push(tmp_path, "a", range(0))
    assert "no longer listed" in run("remote", "retire", folder, host, "--yes")[1]
    assert "no part of a host" in run("remote", "retire", folder, "nobody")[2]


@pytest.mark.parametrize("name", ["node[/b]7", "node[red]7", "node:x:7"])
@pytest.mark.parametrize("columns", [20, 80])
def test_names_of_hosts_are_no_markup(
    name: str, columns: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: name)
    push(tmp_path, "a", range(10))
    status, said, _ = run("remote", "verify", folder, columns=columns)
    assert status == 0
    assert name in said
