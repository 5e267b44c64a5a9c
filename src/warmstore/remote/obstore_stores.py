"""Makes the stores of obstore from a location, credentials and limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

from warmstore.errors import NotInstalled
from warmstore.extras import not_installed
from warmstore.remote import credentials
from warmstore.remote.limits import RequestLimits
from warmstore.remote.location import Location, Redacted
from warmstore.remote.remote_options import CLIENT, PROVIDER


def store_of(
    location: Location,
    options: Mapping[str, Any],
    anonymous: bool,
    limits: RequestLimits,
    redacted: Redacted,
    *,
    write: bool,
) -> Any:
    """obstore's store for a location. `write`: for sending objects; otherwise for all other requests."""
    obstore_package()
    stores: Any = import_module("obstore.store")
    if location.kind == "file":
        return stores.LocalStore(location.address, mkdir=True)
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=limits.connect),
        # Counts from the start of the request, the sending of its body included (reqwest #2784).
        "read_timeout": timedelta(seconds=limits.read_timeout),
        "timeout": timedelta(days=1),  # of a whole transfer, which only a gap in its data ends
        "user_agent": "warmstore",
        "allow_http": True,  # needs an http:// endpoint of the user
    }
    if write:  # WebDAV sends an object in one request, whose time depends on the size
        client["read_timeout"] = timedelta(days=1) if location.kind == "http" else timedelta(seconds=limits.sending)
    given = options.get(CLIENT, {})
    client.update(given)
    options = {name: value for name, value in options.items() if name != CLIENT}
    retries = {
        "max_retries": limits.retries,
        "retry_timeout": timedelta(seconds=limits.request),
        "backoff": {
            "init_backoff": timedelta(seconds=limits.backoff),
            "max_backoff": timedelta(seconds=max(limits.backoff, 5.0)),
            "base": 2,
        },
    }
    if location.kind == "http":
        headers = {**credentials.http_headers(location, anonymous=anonymous), **options.get("headers", {})}
        headers.update(given.get("default_headers", {}))
        redacted.add(headers.values())
        client["default_headers"] = headers
        return stores.HTTPStore.from_url(location.address, client_options=client, retry_config=retries)
    provider = None if anonymous else options.get(PROVIDER)
    if location.kind == "s3":
        config = credentials.aws(options, anonymous=anonymous)
        redacted.add(str(config[name]) for name in ("secret_access_key", "session_token") if name in config)
        own = {"access_key_id", "skip_signature"}
        if provider is None and not anonymous and own.isdisjoint(config) and credentials.makes_credentials():
            provider = _boto3_provider()
        if provider is None and credentials.is_without_token(config):
            provider = partial(_keys_alone, config)
        maker = stores.S3Store
    elif location.kind == "az":
        config = credentials.azure(location, options, anonymous=anonymous)
        redacted.add(str(config[name]) for name in ("account_key", "sas_key") if name in config)
        maker = stores.AzureStore
    else:
        config = {**options, **({"skip_signature": True} if anonymous else {})}
        kind = None if anonymous else credentials.google_kind(options)
        if kind is not None:
            provider = _google_provider(kind)
        maker = stores.GCSStore
    config.pop(PROVIDER, None)
    return maker.from_url(
        location.address, config=config, client_options=client, retry_config=retries, credential_provider=provider
    )


def knows_option(location: Location, name: str, value: Any) -> bool:
    """Whether obstore's store of a location takes an option."""
    stores: Any = import_module("obstore.store")
    makers = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}
    if location.kind not in makers:
        return False
    try:
        makers[location.kind].from_url(location.address, config={name: value})
    except Exception as error:
        return "Configuration key" not in str(error)
    return True


def _keys_alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """A credential provider: obstore itself would add the session token of the variables to keys of another source."""
    keys = {name: config[name] for name in ("access_key_id", "secret_access_key")}
    return {**keys, "token": None, "expires_at": None}


def _boto3_provider() -> Any:
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise NotInstalled("the active AWS profile needs boto3 to make credentials: `pip install boto3`") from error
    return Boto3CredentialProvider()


def _google_provider(kind: str) -> Any:
    try:
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError as error:
        raise NotInstalled(
            f"Google's application default credentials are of the type {kind}, which needs google-auth: "
            "`pip install google-auth requests aiohttp`"
        ) from error
    return GoogleCredentialProvider()


def obstore_package() -> Any:
    """The package `obstore`, with its exceptions. Raises NotInstalled if it is missing."""
    try:
        import obstore
        import obstore.exceptions
    except ImportError as error:
        raise not_installed("a remote", error, "obstore") from error
    return obstore
