"""`warmstore compiled`, as a user sees it."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from tests.cli.test_features import run
from tests.compiling.environments import HERE
from tests.compiling.hosts import KEY, content, host

from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.remote.signing import SigningKey


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two artifacts of the job "train" and one of "eval"."""
    for name in ("WARMSTORE_CACHE_DIR", "WARMSTORE_SIGNING_KEY", "WARMSTORE_SIGNING_KEY_FILE", "WARMSTORE_MAX_SIZE_GB"):
        monkeypatch.delenv(name, raising=False)
    with ArtifactStore(tmp_path / "cache") as store:
        for key, kind, job in (("a", "cpp.so", "train"), ("b", "fx_graph", "train"), ("c", "cpp.so", "eval")):
            store.put(key, kind, key.encode() * 5000, environment=HERE, seconds=2.0, job=job)
        store.used([found for found in [store.find("a", None, HERE)] if found] * 3)
        store.find("missing", None, HERE)
    return tmp_path / "cache"


def test_stats_say_what_is_there_and_what_it_saved(folder: Path) -> None:
    status, said, _ = run("compiled", "stats", "--dir", folder, columns=120)
    assert status == 0
    assert said.splitlines()[0].rstrip() == f"Compiled artifacts in {folder}"
    rows = [line.split() for line in said.splitlines()]
    assert ["cpp.so", "2", "10.0", "kB"] in rows
    assert ["train", "2"] in rows
    assert "Looked up: 1 found; 1 missing." in said
    assert "Used 3 times: 6.0 s of compiling saved." in said
    assert re.search(r"^On disk [\d.]+ kB\. Of the limit of 100 GB, [\d.]+ kB are taken, 0\.0%: ", said, re.MULTILINE)
    status, said, _ = run("compiled", "stats", "--dir", folder, "--json")
    found = json.loads(said)
    assert (found["folder"], found["artifacts"], found["hits"]) == (str(folder), 3, 3)


def test_the_list_can_be_narrowed(folder: Path) -> None:
    _, said, _ = run("compiled", "ls", "--dir", folder, "--job", "train", columns=120)
    rows = [line.split() for line in said.splitlines()]
    assert [row[:7] for row in rows if row and row[0] in "abc"] == [
        ["a", "cpp.so", "5.0", "kB", "2.0", "s", "3"],
        ["b", "fx_graph", "5.0", "kB", "2.0", "s", "0"],
    ]
    _, said, _ = run("compiled", "ls", "--dir", folder, "--kind", "cpp.so", "--json")
    found = json.loads(said)
    assert [one["key"] for one in found] == ["a", "c"]
    assert found[0]["environment"]["torch"] == HERE.torch
    assert run("compiled", "ls", "--dir", folder, "--job", "none")[1] == "No artifacts.\n"


def test_verify_tells_and_fails(folder: Path) -> None:
    assert run("compiled", "verify", "--dir", folder)[:2] == (0, f"{folder}: 3 artifacts are whole\n")
    next((folder / "blobs").glob("*/*")).write_bytes(b"")
    status, said, _ = run("compiled", "verify", "--dir", folder)
    assert status == 1
    assert "was damaged and is dropped" in said
    assert said.endswith(f"{folder}: 2 artifacts are whole\n")


def test_clear_asks_and_takes_what_it_is_told(folder: Path) -> None:
    status, said, _ = run("compiled", "clear", "--dir", folder, answer="n\n")
    assert status == 1
    assert said.endswith("Nothing was removed.\n")
    assert "3 artifacts" in said
    assert "Removed 0 artifacts." in run("compiled", "clear", "--dir", folder, "-y", "--unused-for", "1h")[1]
    assert "Removed 2 artifacts." in run("compiled", "clear", "--dir", folder, "-y", "--job", "train")[1]
    assert "Removed 1 artifacts." in run("compiled", "clear", "--dir", folder, answer="y\n")[1]
    status, _, said = run("compiled", "clear", "--dir", folder, "-y", "--unused-for", "tomorrow")
    assert (status, said) == (
        2,
        'Error: \'tomorrow\' is not a duration; write one such as "30d", "12h", "5min" or "90s"\n',
    )


def test_bundles_are_written_and_taken_in(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "b.tar.zst"
    status, said, _ = run("compiled", "export", bundle, "--dir", folder, "--job", "train")
    assert status == 0
    assert said.startswith(f"{bundle}: 2 artifacts, ")
    assert said.endswith("not signed: no key is configured\n")
    status, said, _ = run("compiled", "import", bundle, "--dir", tmp_path / "new")
    assert (status, said) == (0, f"{tmp_path / 'new'}: 2 artifacts, 10.0 kB, not checked: no key is configured\n")
    status, said, _ = run("signing-keys", "generate")
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", said)
    status, _, said = run("compiled", "import", bundle, "--dir", tmp_path / "new")
    assert status == 1
    assert "it is not signed, which is required when a key is configured" in said
    status, _, said = run("compiled", "export", bundle, "--dir", folder)
    assert (status, said) == (1, f"Error: {bundle} exists already; remove it or choose another name\n")
    key = SigningKey.parse(run("signing-keys", "generate")[1])
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", key.line)
    assert f"signed with the key {key.id}" in run("compiled", "export", tmp_path / "signed", "--dir", folder)[1]
    assert (
        f"signed with the key {key.id}" in run("compiled", "import", tmp_path / "signed", "--dir", tmp_path / "new")[1]
    )


def test_a_cache_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    status, _, said = run("compiled", "stats", "--dir", tmp_path / "none")
    assert (status, said) == (
        1, f"Error: there is no compile cache in {tmp_path / 'none'}; `init` or an import creates one\n"
    )  # fmt: skip
    assert not (tmp_path / "none").exists()


def test_commands_that_look_evict_nothing(folder: Path, tmp_path: Path) -> None:
    with sqlite3.connect(folder / "index.sqlite") as db:  # more than the default limit, as with a larger one of `init`
        db.execute("UPDATE blobs SET size = 50000000000")
        db.execute("UPDATE totals SET size = (SELECT sum((size + 4095) / 4096 * 4096) FROM blobs)")
    for command in (["ls"], ["stats"], ["verify"], ["doctor"], ["warmup", "train"], ["export", tmp_path / "bundle"]):
        run("compiled", *command, "--dir", folder)
        assert [one["key"] for one in json.loads(run("compiled", "ls", "--dir", folder, "--json")[1])] == [
            "a",
            "b",
            "c",
        ]
    assert json.loads(run("compiled", "stats", "--dir", folder, "--json")[1])["limit"] == 100_000_000_000
    assert "Removed 1 artifacts." in run("compiled", "clear", "--dir", folder, "-y", "--job", "eval")[1]
    assert len(json.loads(run("compiled", "ls", "--dir", folder, "--json")[1])) == 2


def test_doctor_makes_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, said = run("compiled", "doctor", "--dir", tmp_path / "typo")
    assert (status, said.startswith(f"Error: there is no compile cache in {tmp_path / 'typo'}; ")) == (1, True)
    monkeypatch.setenv("WARMSTORE_CACHE_DIR", str(tmp_path / "typo"))
    (store,) = [one for one in json.loads(run("compiled", "doctor", "--json")[1]) if one["name"] == "store"]
    assert store["ok"]
    assert store["text"].startswith(f"there is none in {tmp_path / 'typo'}; ")
    assert not (tmp_path / "typo").exists()
    (tmp_path / "typo").mkdir(mode=0o700)
    assert "none yet" in run("compiled", "doctor", columns=300)[1]
    assert not (tmp_path / "typo" / "index.sqlite").exists()


def test_a_remote_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMSTORE_SIGNING_KEY_FILE", "WARMSTORE_REMOTE_URL", "WARMSTORE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with host(tmp_path / "a", tmp_path / "remote") as one:
        one.make(0, 1)
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", KEY.line)
    command = (
        "compiled",
        "prune",
        "--remote",
        tmp_path / "remote",
        "--dir",
        tmp_path / "a",
        "--max-size",
        len(content(1)),
    )
    status, said, _ = run(*command, "--dry-run")
    assert status == 0
    assert said == f"{tmp_path / 'remote'}: would remove 1 artifacts, 1 objects, 2.0 kB; 1 artifacts stay, 2.1 kB\n"
    status, said, _ = run(*command)
    assert "removed 1 artifacts" in said
    status, said, _ = run(*command)
    assert "removed 0 artifacts, 0 objects" in said
    status, _, said = run("compiled", "prune", "--remote", "http://127.0.0.1:1/x", "--option", "endpoint=y")
    assert status == 2
    assert "has no option 'endpoint'" in said
    status, _, said = run("compiled", "prune")
    assert status == 2
    assert "WARMSTORE_REMOTE_URL" in said
