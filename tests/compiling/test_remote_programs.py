"""Programs that name a remote: what they find there, and that they run on without one."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from tests.compiling.hosts import KEY, host
from tests.compiling.programs import SINE, START, launch, run
from tests.remote.servers import S3, s3_variables

from warmstore.compiling import compile_cache
from warmstore.compiling.bundles import export
from warmstore.compiling.jobs import prepare
from warmstore.compiling.probes import probe
from warmstore.compiling.remote.remote_settings import RemoteSettings
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.remote.signing import Keyring

NOTHING = "values = right = [1.0]"
SIGNED = {"WARMSTORE_SIGNING_KEY": KEY.line}


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        server.settimeout(0)
        yield server


def url_of(server: socket.socket) -> str:
    return f"http://me:hunter22@127.0.0.1:{server.getsockname()[1]}/cache"


def was_asked(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.slow
def test_a_program_finds_what_another_host_compiled(filled: Path, s3_server: S3, tmp_path: Path) -> None:
    secrets = {**s3_variables(s3_server.url), **SIGNED}
    url = "s3://bucket/programs"
    first = run(SINE, filled, env={**secrets, "WARMSTORE_REMOTE_URL": url})
    assert first.right
    second = run(SINE, tmp_path / "second", env=secrets, remote=url)
    assert second.right
    assert second.hits
    assert not second.misses
    assert second.inductor["fxgraph_cache_hit"] == 1
    assert not second.kept
    with closing(ArtifactStore(tmp_path / "second")) as store:
        export(store, tmp_path / "second" / "bundle", keyring=Keyring((KEY,)))
    for path in (tmp_path / "second").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.name == "bundle":
                data = zstandard.ZstdDecompressor().stream_reader(data).read()
                assert b"manifest.json" in data
            assert b"a-secret-key-nobody-may-see" not in data
            assert KEY.material.hex().encode() not in data


def test_without_a_key_a_remote_is_not_asked_and_that_is_said_once(mute: socket.socket, tmp_path: Path) -> None:
    report = run(NOTHING, tmp_path / "store", env={"WARMSTORE_SIGNING_KEY": ""}, remote=url_of(mute))
    assert report.active
    assert report.stderr.count("no key is configured") == 1
    assert "hunter22" not in report.stderr
    assert not was_asked(mute)


def test_a_key_that_others_can_read_is_not_used(mute: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY.line)
    (tmp_path / "key").chmod(0o644)
    told = {"WARMSTORE_SIGNING_KEY_FILE": str(tmp_path / "key")}
    report = run(NOTHING, tmp_path / "store", env=told, remote=url_of(mute))
    assert report.active
    assert report.stderr.count("chmod 600") == 1
    assert KEY.material.hex() not in report.stderr
    assert not was_asked(mute)


def test_offline_is_offline(mute: socket.socket, tmp_path: Path) -> None:
    told = {**SIGNED, "WARMSTORE_OFFLINE": "1", "WARMSTORE_REMOTE_URL": url_of(mute)}
    assert run(NOTHING, tmp_path / "store", env=told).active
    assert not was_asked(mute)


def test_a_start_waits_for_a_hanging_remote_no_longer_than_told(mute: socket.socket, tmp_path: Path) -> None:
    """A request may take an hour here: the start ends by its own budget, or not before the test does."""
    patient = """
from warmstore.remote.limits import RequestLimits
hour = RequestLimits(connect=3600, read_timeout=3600, request=3600)
RequestLimits.__init__.__defaults__ = tuple(vars(hour).values())
"""
    report = run(
        NOTHING,
        tmp_path / "store",
        env={**SIGNED, "WARMSTORE_LOG": "debug"},
        remote=url_of(mute),
        start=patient + START,
    )
    assert report.active
    assert was_asked(mute)
    assert "does not answer in time" in report.stderr
    assert "hunter22" not in report.stderr


def test_what_was_compiled_is_published_at_exit_too(tmp_path: Path) -> None:
    code = """
    cache.session.keep("k/1", "package", b"made", 1.0)
    sys.exit()
    """
    process = launch(code, tmp_path / "first", env=SIGNED, remote=str(tmp_path / "remote"))
    assert process.communicate()[1] == ""
    with host(tmp_path / "second", tmp_path / "remote", environment=probe()) as second:
        assert second.tier.fetch("k/1")


def test_settings_show_no_secrets_and_refuse_nonsense() -> None:
    settings = RemoteSettings.of("https://me:hunter22@host/x", {"headers": {"x-key": "hidden-away"}}, 2.0)
    assert "hunter22" not in repr(settings)
    assert "hidden-away" not in repr(settings)
    with pytest.raises(ValueError, match="ftp"):
        compile_cache.init(remote="ftp://host/x")
    with pytest.raises(ValueError, match="remote_wait=-1"):
        compile_cache.init(remote="s3://bucket", remote_wait=-1)


@pytest.mark.slow
def test_a_warm_up_brings_all_of_a_job_from_the_remote(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMSTORE_SIGNING_KEY", KEY.line)
    remote = tmp_path / "remote"
    with host(filled, remote, job="test", environment=probe()) as first:
        first.tier.close(first.store.all("test"))
    code = "import warmstore as ws\nvalues, right = [ws.compile_cache.warmup(['test'])['test'] > 3], [True]"
    assert run(code, tmp_path / "second", env=SIGNED, remote=str(remote), job="another").right
    ready = prepare(tmp_path / "third", "test", RemoteSettings.of(remote, None, 2.0), 1 << 30)
    assert ready.keys == ready.ready > 3
    assert not ready.reasons
