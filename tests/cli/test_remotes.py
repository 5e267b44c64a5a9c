"""`warmstore keys` and `warmstore compiled prune`, as a user calls them."""

import stat
from pathlib import Path

import pytest
from tests.cli.test_records import run
from tests.compiling.hosts import KEY, content, host

from warmstore.remote.signing import Keyring, SigningKey


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMSTORE_SIGNING_KEY", "WARMSTORE_SIGNING_KEY_FILE", "WARMSTORE_REMOTE_URL", "WARMSTORE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_key_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "key"
    status, said, _ = run("keys", "generate", "--out", path)
    assert status == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (key,) = Keyring.from_file(path).keys
    assert key.id in said
    assert key.material.hex() not in said
    status, _, said = run("keys", "generate", "--out", path)
    assert status == 1
    assert "exists" in said
    assert Keyring.from_file(path).keys == (key,)


def test_keys_are_shown_without_what_is_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    status, said, aside = run("keys", "generate", "--kind", "ed25519")
    assert status == 0
    key = SigningKey.parse(said)
    assert key.public.line in aside
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", f"{key.line}\n{KEY.line}\n{key.public.line}")
    status, said, _ = run("keys", "show")
    assert status == 0
    assert said.splitlines() == [
        f"{key.id}  signs and checks  {key.public.line}",
        f"{KEY.id}  signs and checks  hmac, a secret",
        f"{key.id}  checks            {key.public.line}",
    ]


def test_no_key_and_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said, _ = run("keys", "show")
    assert (status, said[:21]) == (1, "No key is configured:")
    status, _, said = run("keys", "generate", "--kind", "rsa")
    assert status == 1
    assert "choose hmac or ed25519" in said
    assert run("keys", "generate", "--kind", "ed25519.pub")[0] == 1


def test_a_remote_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert status == 1
    assert "has no option 'endpoint'" in said
    status, _, said = run("compiled", "prune")
    assert status == 1
    assert "WARMSTORE_REMOTE_URL" in said
