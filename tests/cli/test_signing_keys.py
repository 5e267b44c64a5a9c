"""`warmstore signing-keys`, as a user calls it."""

import stat
from pathlib import Path

import pytest
from tests.cli.test_store import run
from tests.compiling.hosts import KEY

from warmstore.remote.signing import Keyring, SigningKey


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMSTORE_SIGNING_KEY", "WARMSTORE_SIGNING_KEY_FILE", "WARMSTORE_REMOTE_URL", "WARMSTORE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_key_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "key"
    status, said, _ = run("signing-keys", "generate", "--out", path)
    assert status == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (key,) = Keyring.from_file(path).keys
    assert key.id in said
    assert key.material.hex() not in said
    status, _, said = run("signing-keys", "generate", "--out", path)
    assert status == 1
    assert "exists" in said
    assert Keyring.from_file(path).keys == (key,)


def test_keys_are_shown_without_what_is_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    status, said, aside = run("signing-keys", "generate", "--kind", "ed25519")
    assert status == 0
    key = SigningKey.parse(said)
    assert key.public.line in aside
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", f"{key.line}\n{KEY.line}\n{key.public.line}")
    status, said, _ = run("signing-keys", "show")
    assert status == 0
    assert said.splitlines() == [
        f"{key.id}  signs and checks  {key.public.line}",
        f"{KEY.id}  signs and checks  hmac, a secret",
        f"{key.id}  checks            {key.public.line}",
    ]


def test_no_key_and_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    status, said, _ = run("signing-keys", "show")
    assert (status, said[:21]) == (1, "No key is configured:")
    status, _, said = run("signing-keys", "generate", "--kind", "rsa")
    assert status == 2
    assert "choose hmac or ed25519" in said
    assert run("signing-keys", "generate", "--kind", "ed25519.pub")[0] == 2
