"""Credentials as the clouds' own tools find them: explicit options, then variables, then files.

obstore itself reads variables, the files of Google, and the metadata services of cloud machines. This module adds the
profiles of AWS, the variables of the AWS tools for endpoints, and .netrc for HTTP.
"""

from __future__ import annotations

import base64
import netrc
import os
from collections.abc import Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warmstore.remote.location import Location

_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")


def aws(options: Mapping[str, Any], *, anonymous: bool) -> dict[str, Any]:
    """Options for obstore's S3Store: the given ones, completed from the variables and profiles of AWS.

    Files and variables: AWS SDKs and Tools Reference Guide, "Shared config and credentials files". The access_key_id,
    secret_access_key, session_token, region and endpoint_url of a profile are used. Profiles that make credentials
    (sso_session, role_arn, credential_process) need boto3.
    """
    found = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    config, credentials = _profile()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or config.get("endpoint_url")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or config.get("region")
    for name, value in {"endpoint": endpoint, "region": region}.items():
        if value and name not in found:
            found[name] = value
    if anonymous:
        public = {name: value for name, value in found.items() if name in ("endpoint", "region")}
        return public | {"skip_signature": True}
    if "access_key_id" in found or "skip_signature" in found:
        return found
    if any(map(os.environ.get, (*_OWN_KEYS, "AWS_SKIP_SIGNATURE"))):
        return found
    for name in ("access_key_id", "secret_access_key", "session_token"):
        if value := credentials.get(f"aws_{name}") or config.get(f"aws_{name}"):
            found[name] = value
    return found


def makes_credentials() -> bool:
    """Whether the active AWS profile has no credentials, but a way to make them, which boto3 supports."""
    config, credentials = _profile()
    makers = {"sso_session", "sso_start_url", "role_arn", "credential_process"}
    own = any(map(os.environ.get, _OWN_KEYS))
    return not own and "aws_access_key_id" not in credentials and not makers.isdisjoint(config)


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
