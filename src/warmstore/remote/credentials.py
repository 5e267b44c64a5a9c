"""Credentials and endpoints as the clouds' own tools find them: explicit options, then variables, then files.

obstore itself reads variables, the files of Google, and the metadata services of cloud machines. This module adds what
obstore does not read: the profiles of AWS, the variables of the AWS tools for endpoints, Azure's connection string, and
.netrc for HTTP. Credentials that must be made (single sign-on, roles, federation) come from obstore's providers.
"""

from __future__ import annotations

import base64
import json
import netrc
import os
import re
from collections.abc import Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warmstore.remote.location import Location
from warmstore.remote.remote_options import PROVIDER

_AWS_NAMES = {"default_region": "region", "endpoint_url_s3": "endpoint", "endpoint_url": "endpoint"}
"""Further names of options. obstore refuses two names of one option, and does not know all of these."""
_AWS_SECRETS = ("access_key_id", "secret_access_key", "session_token", "token", PROVIDER)
_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")


def aws(options: Mapping[str, Any], *, anonymous: bool) -> dict[str, Any]:
    """Options for obstore's S3Store: the given ones, completed from the variables and profiles of AWS.

    Files and variables: AWS SDKs and Tools Reference Guide, "Shared config and credentials files". The access_key_id,
    secret_access_key, session_token, region and endpoint_url of a profile are used. Profiles that make credentials
    (sso_session, role_arn, credential_process) need boto3.
    """
    found = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    for other, name in _AWS_NAMES.items():
        if other in found:
            found.setdefault(name, found[other])
            del found[other]
    config, credentials = _profile()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or config.get("endpoint_url")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or config.get("region")
    for name, value in {"endpoint": endpoint, "region": region}.items():
        if value and name not in found:
            found[name] = value
    if anonymous:
        public = {name: value for name, value in found.items() if name not in _AWS_SECRETS}
        return public | {"skip_signature": True}
    if not {"access_key_id", "skip_signature", PROVIDER}.isdisjoint(found):
        return found
    if any(map(os.environ.get, (*_OWN_KEYS, "AWS_SKIP_SIGNATURE"))):
        return found
    for name in ("access_key_id", "secret_access_key", "session_token"):
        if value := credentials.get(f"aws_{name}") or config.get(f"aws_{name}"):
            found[name] = value
    return found


_NOT_SHOWN = re.compile(r"(?<=://)[^/@]*@|[?#].*")  # of an endpoint: names, passwords and signatures
_AZURE_PARTS = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_AZURE_OWN = (
    "account_key",
    "access_key",
    "sas_key",
    "sas_token",
    "token",
    "bearer_token",
    "client_id",
    "use_azure_cli",
    PROVIDER,
)
# The account of the emulator is the same everywhere: "Use the Azurite emulator", section "Well-known storage account".
_EMULATOR = (
    "AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def azure(location: Location, options: Mapping[str, Any], *, anonymous: bool) -> dict[str, Any]:
    """Options for obstore's AzureStore: the given ones, completed from AZURE_STORAGE_CONNECTION_STRING.

    obstore reads the other variables of Azure's tools. A connection string takes precedence over them, as in the Azure
    CLI; one of another account than the URL's or the options' is ignored.

    Raises:
        ValueError: the variable is no connection string.
    """
    found = {_azure_name(name): value for name, value in options.items()}
    if anonymous:
        return {**found, "skip_signature": True}
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if not text or "skip_signature" in found or not found.keys().isdisjoint(_AZURE_OWN):
        return found
    parts = _connection(text)
    host = urlsplit(location.address).netloc.rpartition("@")[2]
    account = found.get("account_name") or (host.partition(".")[0] if "." in host else None)
    if account is not None and account != parts.get("account_name", account):
        return found
    return {**parts, **found}


def _azure_name(name: str) -> str:
    return name.lower().removeprefix("azure_storage_").removeprefix("azure_")


def _connection(text: str) -> dict[str, Any]:
    """The options in a connection string: "Configure Azure Storage connection strings" in Azure's documentation."""
    pairs = [part.partition("=") for part in text.strip().split(";") if part.strip()]
    values = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if values.get("usedevelopmentstorage", "").lower() == "true":
        return _connection(_EMULATOR)
    found = {option: values[name] for name, option in _AZURE_PARTS.items() if values.get(name)}
    if "account_name" not in found and "endpoint" in found:
        found["account_name"] = urlsplit(found["endpoint"]).netloc.partition(".")[0]
    if not found.keys() & {"account_key", "sas_key"}:
        raise ValueError(
            "AZURE_STORAGE_CONNECTION_STRING has neither an AccountKey nor a SharedAccessSignature; copy it from the "
            "storage account's access keys, or unset it"
        )
    if "endpoint" not in found and "endpointsuffix" in values:
        protocol = values.get("defaultendpointsprotocol", "https")
        found["endpoint"] = f"{protocol}://{found['account_name']}.blob.{values['endpointsuffix']}"
    return found


def identity_of(location: Location, options: Mapping[str, Any], *, anonymous: bool) -> str:
    """The URL of a remote, and the account and endpoint if options, variables or files give them.

    Remotes with the same URL at different endpoints have different identities. An identity has no secrets.
    """
    parts: list[Any] = []
    if location.kind == "s3":
        found = aws(options, anonymous=anonymous)
        parts = [found.get("endpoint") or os.environ.get("AWS_ENDPOINT")]
    elif location.kind == "gs":
        given = {name.lower().removeprefix("google_"): value for name, value in options.items()}
        parts = [given.get("base_url") or os.environ.get("GOOGLE_BASE_URL")]
    elif location.kind == "az":
        found = azure(location, options, anonymous=anonymous)
        account = () if "@" in location.address else ("account_name",)  # else the URL has it
        for name in (*account, "endpoint", "use_emulator"):
            variables = (f"{prefix}_{name.upper()}" for prefix in ("AZURE_STORAGE", "AZURE"))
            parts += [found[name]] if name in found else filter(None, map(os.environ.get, variables))
    shown = (_NOT_SHOWN.sub("", str(part)).rstrip("/") for part in parts if part)
    return " at ".join((location.url, *shown))


def is_without_token(found: Mapping[str, Any]) -> bool:
    """Whether options from `aws` have keys without a session token, and the variables have a token of other keys."""
    if not found.keys() >= {"access_key_id", "secret_access_key"} or {"session_token", "token"} & found.keys():
        return False
    is_other = found["access_key_id"] != os.environ.get("AWS_ACCESS_KEY_ID")
    return is_other and bool(os.environ.get("AWS_SESSION_TOKEN"))


def makes_credentials() -> bool:
    """Whether the active AWS profile has no credentials, but a way to make them, which boto3 supports."""
    config, credentials = _profile()
    makers = {"sso_session", "sso_start_url", "role_arn", "credential_process"}
    own = any(map(os.environ.get, (*_OWN_KEYS, "AWS_SKIP_SIGNATURE")))
    return not own and "aws_access_key_id" not in credentials and not makers.isdisjoint(config)


def google_kind(options: Mapping[str, Any]) -> str | None:
    """The type in the file of Google's application default credentials, where obstore does not read files of this type
    (external_account: workload identity federation; impersonated_service_account). None: obstore finds credentials.

    The places of the file: "How Application Default Credentials works" in Google Cloud's documentation.
    """
    own = {
        "service_account",
        "service_account_key",
        "bearer_token",
        "skip_signature",
        "application_credentials",
        PROVIDER,
    }
    if own & {name.lower().removeprefix("google_").removeprefix("gcs_") for name in options}:
        return None
    if any(map(os.environ.get, ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE"))):
        return None
    folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or f"{folder}/application_default_credentials.json"
    try:
        kind = json.loads(Path(path).expanduser().read_text()).get("type")
    except (OSError, ValueError, AttributeError):
        return None
    return kind if isinstance(kind, str) and kind not in ("service_account", "authorized_user") else None


def _profile() -> tuple[dict[str, str], dict[str, str]]:
    """The sections of the active profile in the files of AWS: config, credentials."""
    profile = os.environ.get("AWS_PROFILE") or "default"
    section = "default" if profile == "default" else f"profile {profile}"
    config = _section(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config", section)
    return config, _section(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", profile)


def _section(path: str, name: str) -> dict[str, str]:
    parser = ConfigParser(interpolation=None, default_section="\0")
    try:
        parser.read(Path(path).expanduser())
    except (Error, OSError, UnicodeDecodeError):
        return {}
    return dict(parser[name]) if parser.has_section(name) else {}


def http_headers(location: Location, *, anonymous: bool) -> dict[str, str]:
    """Basic authentication (RFC 7617) for a URL with a user name, or for a host in .netrc."""
    if anonymous:
        return {}
    name, password = location.name, location.password
    if not name:
        try:
            known = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(location.address).hostname or "")
        except (OSError, netrc.NetrcParseError):
            known = None
        if known is None:
            return {}
        name, password = known[0], known[2] or ""
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
