"""The options of a remote: their names, which are those of obstore's stores, and a check that suggests similar ones."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from warmstore.remote.location import Location

CLIENT = "client_options"
"""The option with those of the HTTP client, of all kinds of remotes."""

PROVIDER = "credential_provider"
"""The option with one of obstore's credential providers, or a function like them; of the clouds."""

_CLIENT_NAMES = (
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"),
    *("http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"),
    *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes", "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"),
)
_NAMES = {
    "s3": (
        *("access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint", "bucket"),
        *("endpoint_url", "endpoint_url_s3", "allow_http", "skip_signature", "unsigned_payload", "request_payer"),
        *("virtual_hosted_style_request", "s3_express", "conditional_put", "copy_if_not_exists", "checksum_algorithm"),
        *("disable_tagging", "disable_bulk_delete", "imdsv1_fallback", "metadata_endpoint", "role_arn"),
        *("role_session_name", "sts_endpoint", "web_identity_token_file", "container_credentials_relative_uri"),
        *("container_credentials_full_uri", "container_authorization_token_file", "server_side_encryption"),
        *("sse_bucket_key_enabled", "sse_customer_key_base64", "sse_kms_key_id"),
    ),
    "gs": (
        *("service_account", "service_account_key", "application_credentials", "bearer_token", "base_url", "bucket"),
        "skip_signature",
    ),
    "az": (
        *("account_name", "account_key", "access_key", "sas_key", "sas_token", "token", "bearer_token", "client_id"),
        *("client_secret", "tenant_id", "authority_host", "authority_id", "credential_type", "federated_token_file"),
        *("endpoint", "container_name", "use_emulator", "use_azure_cli", "use_fabric_endpoint", "msi_endpoint"),
        *("msi_resource_id", "identity_endpoint", "object_id", "skip_signature", "disable_tagging", "encryption_key"),
        *("fabric_token_service_url", "fabric_workload_host", "fabric_session_token", "fabric_cluster_identifier"),
    ),
    "http": ("headers",),
    "file": (),
}
_CLOUDS = ("s3", "gs", "az")
_PREFIXES = {
    "s3": ("aws_",),
    "gs": ("google_", "gcs_"),
    "az": ("azure_storage_", "azure_"),
    "http": (),
    "file": (),
}


def check_options(
    location: Location, options: Mapping[str, Any], knows: Callable[[str, Any], bool] | None = None
) -> None:
    """Check the names of options.

    Args:
        knows: asks obstore about a name that is not in the list here, with its value: a newer obstore has more.

    Raises:
        ValueError: no such option. The message suggests one of a similar name.
    """
    kind = location.kind
    for name, value in options.items():
        if name == CLIENT:
            _check_client(location, value)
            continue
        if name == PROVIDER and kind in _CLOUDS:
            if not callable(value):
                raise ValueError(f"{PROVIDER} of {location.url} is {type(value).__name__}; it must be a function")
            continue
        base = str(name).lower()
        for prefix in _PREFIXES[kind]:
            base = base.removeprefix(prefix)
        if base not in _NAMES[kind] and (knows is None or not knows(name, value)):
            names = (*_NAMES[kind], CLIENT, *((PROVIDER,) if kind in _CLOUDS else ()))
            raise ValueError(f"{location.url} has no option {name!r}{_suggestion(base, names)}")


def _check_client(location: Location, client: Any) -> None:
    if not isinstance(client, Mapping):
        raise ValueError(f"{CLIENT} of {location.url} is {type(client).__name__}; it must be a dict of options by name")
    for name in client:
        if name not in _CLIENT_NAMES:
            raise ValueError(f"{CLIENT} of {location.url} has no {name!r}{_suggestion(str(name), _CLIENT_NAMES)}")


def _suggestion(name: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, names, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(names)}"
