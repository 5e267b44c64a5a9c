"""URLs of remotes, what is shown of them, and the credentials that belong to them."""

from pathlib import Path
from typing import Any

import pytest

from warmstore.remote import credentials
from warmstore.remote.limits import RequestLimits
from warmstore.remote.location import Location, Redacted, from_anywhere
from warmstore.remote.obstore_stores import store_of


@pytest.mark.parametrize(
    ("url", "kind", "shown", "address"),
    [
        ("s3://bucket/a/b/", "s3", "s3://bucket/a/b", "s3://bucket/a/b"),
        ("gs://bucket", "gs", "gs://bucket", "gs://bucket"),
        ("https://me:pass%40word@host:8/x/y/", "http", "https://host:8/x/y", "https://host:8"),
        ("gcs://bucket/a", "gs", "gs://bucket/a", "gs://bucket/a"),
        ("az://container/x", "az", "az://container/x", "az://container/x"),
        ("abfss://box@me.dfs.core.windows.net/x", "az", *["abfss://box@me.dfs.core.windows.net/x"] * 2),
        ("file:///tmp/a%20b", "file", "/tmp/a b", "/tmp/a b"),
    ],
)
def test_a_url_says_kind_and_place(url: str, kind: str, shown: str, address: str) -> None:
    location = Location.parse(url)
    assert (location.kind, location.url, location.address) == (kind, shown, address)
    assert "word" not in repr(location)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/x",
        "s3:///x",
        "https:///x",
        "https://host/x?sig=1",
        "s3://bucket/a#b",
        "file:///a?b",
        "~nobody-here/x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"remote|has no bucket|scheme|query|is no path"):
        Location.parse(url)


@pytest.mark.parametrize("url", ["file://team/photos", "file://", "s3:/bucket/x", Path("s3://bucket/x")])
def test_what_would_be_another_place_than_was_meant_is_refused(url: str | Path) -> None:
    with pytest.raises(ValueError, match=r"no absolute path|one slash too few"):
        Location.parse(url)


@pytest.mark.parametrize("url", ["s3://me:hunter22@bucket/x", "az://me:hunter22@container/x", "gs://hunter22@bucket"])
def test_credentials_in_urls_of_clouds_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="name or password") as raised:
        Location.parse(url)
    assert "hunter22" not in str(raised.value)


def test_messages_lose_what_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "fromenvironment")
    location = Location.parse("https://me:hunter22@host/x")
    redacted = Redacted(location, {"endpoint": "https://host", "nested": {"secret_access_key": "fromoptions"}})
    said = redacted(
        "GET https://me:hunter22@host/x?sig=signature fromenvironment fromoptions https://a/?X-Amz-Signature=abc end"
    )
    for secret in ("hunter22", "signature", "fromenvironment", "fromoptions", "abc"):
        assert secret not in said.replace("X-Amz-Signature", "")
    assert said.startswith("GET https://***@host/x")
    assert said.endswith("end")


def test_locations_for_processes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    found = [from_anywhere(path) for path in ("a", Path("a/../b"), "~/c", "s3://bucket/~", "/d")]
    assert found == [f"{tmp_path}/a", f"{tmp_path}/b", "/home/me/c", "s3://bucket/~", "/d"]
    with pytest.raises(ValueError, match="one slash too few"):
        from_anywhere(Path("s3://bucket/a"))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile team]\nregion = us-west-2\nendpoint_url = http://minio:9000\n"
        "[profile made]\nsso_session = x\n"
    )
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id = ID\naws_secret_access_key = SECRET\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def test_profiles_of_aws_are_read(profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials.aws({}, anonymous=False) == {"region": "eu-west-1"}
    monkeypatch.setenv("AWS_PROFILE", "team")
    team = {"region": "us-west-2", "endpoint": "http://minio:9000"}
    secrets = {"access_key_id": "ID", "secret_access_key": "SECRET"}
    assert credentials.aws({}, anonymous=False) == {**team, **secrets}
    assert credentials.aws({}, anonymous=True) == {**team, "skip_signature": True}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    assert credentials.aws({"AWS_REGION": "here"}, anonymous=False) == {**team, "region": "here"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert not credentials.makes_credentials()
    monkeypatch.setenv("AWS_PROFILE", "made")
    assert credentials.makes_credentials()


@pytest.mark.parametrize("name", ["endpoint", "endpoint_url", "AWS_ENDPOINT_URL", "endpoint_url_s3"])
@pytest.mark.parametrize("anonymous", [False, True])
def test_an_endpoint_among_the_options_counts_by_each_of_its_names(
    anonymous: bool, name: str, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://another")
    options = {name: "http://mine", "aws_default_region": "here", "virtual_hosted_style_request": "true"}
    given = {"endpoint": "http://mine", "region": "here", "virtual_hosted_style_request": "true"}
    secrets = {"access_key_id": "ID", "secret_access_key": "SECRET"}
    own = {"skip_signature": True} if anonymous else secrets
    assert credentials.aws(options, anonymous=anonymous) == {**given, **own}
    assert credentials.aws({**options, **secrets}, anonymous=anonymous) == {**given, **own}
    location = Location.parse("s3://bucket/a")
    assert credentials.identity_of(location, options, anonymous=anonymous) == "s3://bucket/a at http://mine"
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")
    made = store_of(location, options, anonymous, RequestLimits(), Redacted(location, options), write=False)
    assert made.config["endpoint"] == "http://mine"


def test_netrc_and_names_in_urls_are_basic_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine known.example login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    basic = {"authorization": "Basic bWU6c2VjcmV0"}
    assert credentials.http_headers(Location.parse("https://known.example/x"), anonymous=False) == basic
    assert credentials.http_headers(Location.parse("https://me:secret@other/x"), anonymous=False) == basic
    assert credentials.http_headers(Location.parse("https://other/x"), anonymous=False) == {}
    assert credentials.http_headers(Location.parse("https://me:secret@other/x"), anonymous=True) == {}


@pytest.mark.parametrize(
    ("url", "options", "variables", "identity"),
    [
        ("s3://bucket/a/", {"region": "x"}, {}, "s3://bucket/a"),
        (
            "s3://bucket/a",
            {"aws_endpoint": "https://one/"},
            {"AWS_ENDPOINT_URL": "two"},
            "s3://bucket/a at https://one",
        ),
        ("s3://bucket/a", {}, {"AWS_ENDPOINT_URL": "https://me:pass@two?sig=1"}, "s3://bucket/a at https://two"),
        ("s3://bucket/a", {}, {"AWS_ENDPOINT": "https://three"}, "s3://bucket/a at https://three"),
        ("gs://bucket", {"google_base_url": "https://one"}, {}, "gs://bucket at https://one"),
        ("az://box/x", {"account_name": "one", "account_key": "c2VjcmV0"}, {}, "az://box/x at one"),
        ("az://box/x", {}, {"AZURE_STORAGE_ACCOUNT_NAME": "two"}, "az://box/x at two"),
        ("az://box/x", {"azure_storage_use_emulator": True}, {}, "az://box/x at True"),
        (
            "az://box/x",
            {},
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=three;AccountKey=c2VjcmV0;BlobEndpoint=https://four"},
            "az://box/x at three at https://four",
        ),
        ("abfss://box@me.dfs.core.windows.net/x", {}, {"AZURE_STORAGE_ACCOUNT_NAME": "two"}, None),
        ("https://host/x", {"headers": {"authorization": "word"}}, {"AWS_ENDPOINT_URL": "two"}, None),
    ],
)
def test_remotes_with_one_url_at_two_endpoints_differ(
    url: str, options: dict[str, Any], variables: dict[str, str], identity: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_CONFIG_FILE": "/dev/null", **variables}.items():
        monkeypatch.setenv(name, value)
    location = Location.parse(url)
    assert credentials.identity_of(location, options, anonymous=False) == (identity or location.url)
