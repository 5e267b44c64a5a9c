"""The location of a remote: one URL for every kind of object store, and a form without secrets for messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from warmstore.storage.user_paths import user_path

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "adl": "az",
    "http": "http",
    "https": "http",
    "file": "file",
}
"""The kind of store of each scheme."""

_SECRET = re.compile(r"key|secret|token|password|sas|authorization|credential", re.IGNORECASE)
_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE|GCP|WARMSTORE)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)")
_LEAST = 6  # characters of a secret; shorter texts occur in messages by chance


@dataclass(frozen=True)
class Location:
    """The parts of a remote's URL, made by `parse`.

    Attributes:
        kind: One of "s3", "gs", "az", "http", "file".
        url: The URL without name, password and query, for messages.
        address: The URL to connect to, without name and password; for "file" the path of a folder, for "http" only the
            server.
        path: For "http", the path on the server.
        name, password: The user name and password in the URL, or "".
    """

    kind: str
    url: str
    address: str = field(repr=False)
    path: str = ""
    name: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> Location:
        """The location of a URL or of the path of a folder. Raises ValueError for an unknown scheme, a missing bucket
        or host, or unsupported parts."""
        text = os.fspath(url)
        if not is_remote(url):
            if not text.strip():
                raise ValueError("the URL of a remote is empty; give one such as s3://bucket/prefix, or a folder")
            path = user_path(text).absolute()
            return cls("file", str(path), str(path))
        parts = urlsplit(text)
        kind = SCHEMES.get(parts.scheme.lower())
        if kind is None:
            raise ValueError(f"{parts.scheme}:// is no known scheme; use one of {', '.join(SCHEMES)} or a folder")
        user, _, host = parts.netloc.rpartition("@")
        shown = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        if "?" in text or "#" in text:
            raise ValueError(f"{shown} has a query (? or #), which is not supported; leave it out or quote it")
        if kind == "file":
            if host not in ("", "localhost") or not parts.path.startswith("/"):
                raise ValueError(f"{shown} is no absolute path; write file:///path, or the path of the folder")
            folder = str(Path(unquote(parts.path)))
            return cls(kind, folder, folder)
        if not host:
            raise ValueError(f"{shown} has no bucket or host; write {parts.scheme}://NAME/PREFIX")
        if kind == "az" and user and ":" not in user:  # abfss://container@account...: no secret
            host, user = parts.netloc, ""
            shown = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        if user and kind != "http":
            raise ValueError(
                f"{shown} was given with a name or password; give credentials of {kind}:// in the variables or files "
                "of the cloud's own tools, or in remote_options"
            )
        if kind == "http":
            server = f"{parts.scheme}://{host}"
            below = unquote(parts.path).strip("/")
            return cls(kind, shown, server, below, unquote(parts.username or ""), unquote(parts.password or ""))
        if kind == "gs":
            shown = f"gs://{host}{parts.path.rstrip('/')}"  # the only scheme that obstore knows
        return cls(kind, shown, shown)


def is_remote(url: str | os.PathLike[str]) -> bool:
    """Whether a text is a URL, and not a path. Raises ValueError for a URL in which pathlib has merged two slashes."""
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in SCHEMES and rest.startswith("/") and not rest.startswith("//"):
        raise ValueError(
            f"{text!r} is a URL with one slash too few: give {scheme}://... as a str and not as a Path. For an "
            "operation on a folder, pull the store into a folder first"
        )
    return "://" in text


def from_anywhere(path: str | os.PathLike[str]) -> str:
    """A URL as it is, or the absolute path of a folder, for processes with another working directory.

    Raises ValueError as `is_remote`.
    """
    text = os.fspath(path)
    return text if is_remote(text) else os.path.abspath(user_path(text))  # noqa: PTH100 - no links


class Redacted:
    """Removes secrets from messages: those of a location and of options, of the clouds' variables, and of URLs."""

    def __init__(self, location: Location, options: Mapping[str, object]) -> None:
        self._secrets: list[str] = []
        self.add(str(value) for name, value in _flat(options) if _SECRET.search(name))
        self.add(value for name, value in os.environ.items() if _VARIABLES.match(name))
        self.add([location.password])

    def add(self, secrets: Iterable[str]) -> None:
        """Add further secrets."""
        found = {*self._secrets, *(secret for secret in secrets if len(secret) >= _LEAST)}
        self._secrets = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = re.sub(r"(?<=://)[^/\s@]*@", "***@", text)
        return re.sub(r"(https?://[^\s?\"']*)\?[^\s\"')]*", r"\1?***", text)


def _flat(options: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value
