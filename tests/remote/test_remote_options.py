"""Options of remotes: names that are checked, and the connection string of Azure."""

import http.server
import json
import threading
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from warmstore.errors import NotInstalled, RemoteUnavailable
from warmstore.remote import credentials
from warmstore.remote.limits import RequestLimits
from warmstore.remote.location import Location
from warmstore.remote.objects import Objects

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

KEY = "c2VjcmV0LWtleS1ub2JvZHktbWF5LXNlZQ=="
STRING = f"DefaultEndpointsProtocol=https;AccountName=team;AccountKey={KEY};EndpointSuffix=core.windows.net"


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3://bucket/x", {"endpoin": "http://x"}, "no option 'endpoin'; did you mean 'endpoint'"),
        ("s3://bucket/x", {"aws_secret_acces_key": "x"}, "did you mean 'secret_access_key'"),
        ("s3://bucket/x", {"qqqq": 1}, "no option 'qqqq'; it has access_key_id, .*client_options"),
        ("gs://bucket/x", {"service_acount": "x"}, "did you mean 'service_account'"),
        ("az://box/x", {"acount_name": "x"}, "did you mean 'account_name'"),
        ("https://host/x", {"header": {}}, "did you mean 'headers'"),
        ("/tmp/x", {"region": "eu"}, "no option 'region'"),
        (
            "s3://bucket/x",
            {"client_options": {"timout": "3s"}},
            "client_options .* no 'timout'; did you mean 'timeout'",
        ),
        ("s3://bucket/x", {"client_options": "3s"}, "must be a dict"),
        ("s3://bucket/x", {"credential_provider": "sso"}, "credential_provider of s3://bucket/x is str; .* a function"),
        ("gs://bucket/x", {"credential_provder": print}, "did you mean 'credential_provider'"),
        ("https://host/x", {"credential_provider": print}, "no option 'credential_provider'"),
    ],
)
def test_wrong_names_are_errors_that_suggest(url: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objects(url, options=options)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"AWS_ENDPOINT": "http://x", "aws_region": "eu", "access_key_id": "x", "allow_http": "true"}),
        ("s3://bucket/x", {"client_options": {"timeout": timedelta(1), "proxy_url": "http://proxy:1"}}),
        ("gs://bucket/x", {"google_service_account": "/x", "skip_signature": True}),
        ("az://box/x", {"azure_storage_account_name": "me", "sas_key": "x", "endpoint": "http://x"}),
        ("https://host/x", {"headers": {"x": "y"}, "client_options": {"user_agent": "me"}}),
    ],
)
def test_right_names_are_taken(url: str, options: dict) -> None:
    Objects(url, options=options).close()


def azure(url: str = "az://box/x", anonymous: bool = False, **options: str) -> dict:
    return credentials.azure(Location.parse(url), options, anonymous=anonymous)


def test_the_connection_string_of_azure_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", STRING)
    whole = {"account_name": "team", "account_key": KEY, "endpoint": "https://team.blob.core.windows.net"}
    assert azure() == whole
    assert azure("abfss://box@team.dfs.core.windows.net/x") == whole
    assert azure("abfss://box@other.dfs.core.windows.net/x") == {}
    assert azure(account_name="other") == {"account_name": "other"}
    assert azure(azure_storage_account_key="mine", account_name="team") == {
        "account_key": "mine",
        "account_name": "team",
    }
    assert azure(endpoint="http://proxy") == {**whole, "endpoint": "http://proxy"}
    assert azure(anonymous=True) == {"skip_signature": True}
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    assert azure() == {}


def test_other_connection_strings_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert azure()["endpoint"] == "http://127.0.0.1:10000/devstoreaccount1"
    assert azure()["account_name"] == "devstoreaccount1"
    signed = "BlobEndpoint=https://team.blob.core.windows.net/;SharedAccessSignature=sv=2024&sig=a%3D;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", signed)
    assert azure() == {
        "account_name": "team",
        "sas_key": "sv=2024&sig=a%3D",
        "endpoint": "https://team.blob.core.windows.net/",
    }
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=team")
    with pytest.raises(ValueError, match="neither an AccountKey nor"):
        azure()


_CLOUDS = {
    "s3://bucket/x": ("endpoint", {"access_key_id": "ID", "secret_access_key": "SECRET", "token": None}),
    "gs://bucket/x": ("base_url", {"token": "TOKEN"}),
    "az://box/x": ("endpoint", {"token": "TOKEN"}),
}


@pytest.mark.parametrize("url", _CLOUDS)
def test_a_credential_provider_is_asked_before_every_other_source(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "team")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", STRING)
    endpoint, found = _CLOUDS[url]
    asked = []

    def provider() -> dict:
        asked.append(url)
        return {**found, "expires_at": None}

    options = {endpoint: "http://127.0.0.1:1", "credential_provider": provider}
    with Objects(url, options=options, limits=RequestLimits(retries=0)) as objects, pytest.raises(RemoteUnavailable):
        objects.get("name")
    assert asked == [url]
    anonymous = Objects(url, options=options, limits=RequestLimits(retries=0), anonymous=True)
    with anonymous, pytest.raises(RemoteUnavailable):
        anonymous.get("name")
    assert asked == [url]


def test_a_public_bucket_needs_no_profile_that_makes_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text("[default]\nsso_session = team\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    def get(**options: Any) -> None:
        options["endpoint"] = "http://127.0.0.1:1"
        with Objects("s3://bucket/x", options=options, limits=RequestLimits(retries=0)) as objects:
            objects.get("name")

    with pytest.raises(RemoteUnavailable):
        get(skip_signature=True)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(RemoteUnavailable):
        get()


def test_keys_of_options_are_used_without_the_token_of_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str | None] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["x-amz-security-token"])
            assert "Credential=OWN/" in self.headers["authorization"]
            self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    for name, value in {"ACCESS_KEY_ID": "OTHER", "SECRET_ACCESS_KEY": "other", "SESSION_TOKEN": "token"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        options = {
            "access_key_id": "OWN",
            "secret_access_key": "own",
            "endpoint": f"http://127.0.0.1:{server.server_port}",
        }
        try:
            for more in ({}, {"session_token": "mine"}):
                with Objects("s3://bucket/x", options={**options, **more}) as objects:
                    assert objects.get("name") is None
        finally:
            server.shutdown()
            thread.join()
    assert tokens == [None, "mine"]


@pytest.mark.parametrize("kind", ["external_account", "impersonated_service_account"])
def test_files_of_google_that_obstore_does_not_read_go_to_its_provider(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "application_default_credentials.json"
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for text in ("", "[]", '{"type": "authorized_user"}', '{"type": "service_account"}'):
        path.write_text(text)
        assert credentials.google_kind({}) is None
    path.write_text(json.dumps({"type": kind}))
    assert credentials.google_kind({}) == kind
    assert credentials.google_kind({"google_service_account": "/a"}) is None
    if find_spec("google.auth") is None:
        with Objects("gs://bucket/x") as objects, pytest.raises(NotInstalled, match=f"{kind}.*pip install google-auth"):
            objects.get("name")
    with Objects("gs://bucket/x", options={"base_url": "http://127.0.0.1:1"}, anonymous=True,
                 limits=RequestLimits(retries=0)) as objects, pytest.raises(RemoteUnavailable):  # fmt: skip
        objects.get("name")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none"))
    assert credentials.google_kind({}) is None
