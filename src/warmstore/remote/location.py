"""Where a remote is: one URL for every kind of object store, and nothing secret in what is shown of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
"""The schemes of URLs, and the five kinds of stores that they mean."""

_SECRET = re.compile(r"key|secret|token|password|sas|authorization|credential", re.IGNORECASE)
_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE|GCP|WARMSTORE)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIAL)")
_LEAST = 6  # letters of a secret; what is shorter stands in any message by chance


@dataclass(frozen=True)
class Location:
    """A remote, as `parse` finds it in a URL.

    Attributes:
        kind: One of "s3", "gs", "az", "http", "file".
        url: Without name, password and query: fit to be shown.
        address: The URL without name and password, to connect to; the path of a folder for "file"; for "http" only the
            server.
        path: For "http", the path on the server.
        name: Name that the URL had, or nothing.
        password: Password that the URL had, or nothing.
    """

    kind: str
    url: str
    address: str = field(repr=False)
    path: str = ""
    name: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> Location:
        """The location that a URL or a path of a folder names.

        Raises:
            ValueError: a scheme that is not known, a URL without a bucket or host, or one with parts that name nothing.
        """
        text = os.fspath(url)
        if not is_remote(url):
            if not text.strip():
                raise ValueError("a remote needs a URL such as s3://bucket/prefix, or a folder; this one is empty")
            path = Path(text).expanduser().absolute()
            return cls("file", str(path), str(path))
        parts = urlsplit(text)
        kind = SCHEMES.get(parts.scheme.lower())
        if kind is None:
            raise ValueError(f"{parts.scheme}:// is no kind of remote; use one of {', '.join(SCHEMES)} or a folder")
        user, _, host = parts.netloc.rpartition("@")
        shown = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        # Dropped in silence these would lead to another place than the one that was meant.
        if "?" in text or "#" in text:
            raise ValueError(
                f"{shown} goes on with a query (? or #), which can name no objects; leave it out or quote it"
            )
        if kind == "file":
            if host not in ("", "localhost") or not parts.path.startswith("/"):
                raise ValueError(f"{shown} is no absolute path; write file:///path, or the folder as it is")
            folder = str(Path(unquote(parts.path)))
            return cls(kind, folder, folder)
        if not host:
            raise ValueError(f"{shown} names no bucket or host; write {parts.scheme}://NAME/PREFIX")
        if kind == "az" and user and ":" not in user:  # abfss://container@account...: no secret
            host, user = parts.netloc, ""
            shown = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        if user and kind != "http":
            raise ValueError(
                f"{shown} had a name or password before it; credentials of {kind}:// come from the variables and files "
                "of the cloud's own tools, or from remote_options"
            )
        if kind == "http":
            server = f"{parts.scheme}://{host}"
            below = unquote(parts.path).strip("/")
            return cls(kind, shown, server, below, unquote(parts.username or ""), unquote(parts.password or ""))
        if kind == "gs":
            shown = f"gs://{host}{parts.path.rstrip('/')}"  # the only spelling that obstore knows
        return cls(kind, shown, shown)


def is_remote(url: str | os.PathLike[str]) -> bool:
    """Whether this names an object store by a URL, and not a path. Paths with "://" in them are none of anybody's.

    Raises:
        ValueError: a URL that lost a slash, as pathlib does to them: it would be a folder named s3:.
    """
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in SCHEMES and rest.startswith("/") and not rest.startswith("//"):
        raise ValueError(
            f"{text!r} is a URL that lost a slash: give {scheme}://... as a str and not as a Path. What needs a folder "
            "needs it pulled into one first"
        )
    return "://" in text


class Redacted:
    """Takes secrets out of messages: those it is told, those of the clouds' variables, and those in URLs."""

    def __init__(self, location: Location, options: Mapping[str, object]) -> None:
        told = [str(value) for name, value in _flat(options) if _SECRET.search(name)]
        variables = [value for name, value in os.environ.items() if _VARIABLES.match(name)]
        secrets = {one for one in (*told, *variables, location.password) if len(one) >= _LEAST}
        self._secrets = sorted(secrets, key=len, reverse=True)

    def add(self, secrets: Iterable[str]) -> None:
        """More of them, as found in files."""
        found = {*self._secrets, *(one for one in secrets if len(one) >= _LEAST)}
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
