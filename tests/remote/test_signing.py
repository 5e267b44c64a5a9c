"""Keys and signatures: what one key signed for one purpose, only that key confirms, only for that purpose."""

import os
from pathlib import Path

import pytest

from warmstore.errors import NotInstalled, NotTrusted
from warmstore.remote.signing import Keyring, SigningKey

KINDS = ["hmac", "ed25519"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_same_message_and_purpose_is_confirmed(kind: str) -> None:
    if kind == "ed25519":
        pytest.importorskip("cryptography")
    key = SigningKey.new(kind)
    ring, public = Keyring((key,)), Keyring((key.public,))
    signature = ring.sign("bundle", b"message")
    assert signature is not None
    for one in (ring, public):
        assert one.check("bundle", b"message", signature, "it") == key.id
        for purpose, message in (
            ("bundle", b"messagf"),
            ("remote", b"message"),
            ("bundl", b"e\0message"),
            ("bundle", b""),
        ):
            with pytest.raises(NotTrusted, match="it was changed"):
                one.check(purpose, message, signature, "it")
        for bad in ({"signature": "00"}, {"signature": "no hex"}, {"signature": ""}):
            with pytest.raises(NotTrusted, match="it was changed"):
                one.check("bundle", b"message", signature | bad, "it")
        with pytest.raises(NotTrusted, match="which you do not have"):
            one.check("bundle", b"message", signature | {"kind": "other"}, "it")
    assert key.id == key.public.id != SigningKey.new(kind).id
    assert key.material.hex() not in repr(ring)


def test_a_public_key_signs_nothing() -> None:
    pytest.importorskip("cryptography")
    assert Keyring((SigningKey.new("ed25519").public,)).sign("bundle", b"") is None
    assert Keyring().sign("bundle", b"") is None


def test_a_signature_is_not_made_with_a_public_key_as_a_secret() -> None:
    """The public key is known to all: an HMAC with it proves nothing."""
    pytest.importorskip("cryptography")
    public = SigningKey.new("ed25519").public
    forged = Keyring((SigningKey("hmac", public.material),)).sign("bundle", b"m")
    assert forged is not None
    with pytest.raises(NotTrusted):
        Keyring((public,)).check("bundle", b"m", forged | {"key": public.id}, "it")
    with pytest.raises(NotTrusted):
        Keyring((public,)).check("bundle", b"m", forged | {"key": public.id, "kind": "ed25519.pub"}, "it")


@pytest.mark.parametrize(
    "line", ["", "hmac", "hmac:", "hmac:xyz", "hmac:" + "00" * 15, "ed25519:" + "00" * 31, "rsa:" + "00" * 32]
)
def test_lines_that_are_no_key_are_said_to_be_none_and_not_shown(line: str) -> None:
    with pytest.raises(ValueError, match="a key"):
        SigningKey.parse(line)
    if line:
        with pytest.raises(NotTrusted, match="line 2 is no key") as raised:
            Keyring.from_environment({"WARMSTORE_SIGNING_KEY": f"# a comment\n{line}"})
        assert "00000000" not in str(raised.value)


def test_keys_come_from_the_variable_and_the_file(tmp_path: Path) -> None:
    first, second = SigningKey.new(), SigningKey.new()
    path = tmp_path / "keys"
    path.write_text(f"# team\n\n{second.line}\n")
    path.chmod(0o600)
    ring = Keyring.from_environment({"WARMSTORE_SIGNING_KEY": first.line, "WARMSTORE_SIGNING_KEY_FILE": str(path)})
    assert ring.keys == (first, second)
    assert not Keyring.from_environment({})


@pytest.mark.parametrize(
    ("mode", "said"), [(0o640, "can read the secret"), (0o604, "can read the secret"), (0o620, "written this file")]
)
def test_a_file_that_is_open_to_others_is_refused(mode: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(SigningKey.new().line)
    path.chmod(mode)
    with pytest.raises(NotTrusted, match=f"{said}.*chmod 600") as raised:
        Keyring.from_file(path)
    assert raised.value.filename == str(path)


def test_a_file_of_public_keys_may_be_read_by_all(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = tmp_path / "keys"
    path.write_text(SigningKey.new("ed25519").public.line)
    path.chmod(0o644)
    assert Keyring.from_file(path)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("needs root to give a file away")
    path = tmp_path / "keys"
    path.write_text(SigningKey.new().line)
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(NotTrusted, match="other users could have written this file"):
        Keyring.from_file(path)


def test_a_file_without_keys_or_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(NotTrusted, match="cannot be read"):
        Keyring.from_file(tmp_path / "none")
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(NotTrusted, match="this file has no key"):
        Keyring.from_file(tmp_path / "empty")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(NotInstalled, match=r"warmstore\[sign\]"):
        SigningKey("ed25519", bytes(32)).sign(b"")
