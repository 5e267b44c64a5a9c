"""VersionRemote: what an open version of a cache needs of its remote."""

from typing import Protocol, TypeVar

from warmstore.storage.files import Files

_Version = TypeVar("_Version", contravariant=True)


class VersionRemote(Protocol[_Version]):
    """The remote of a cache that was opened by its URL; `RemoteBinding` implements it."""

    def files(self, name: str) -> Files:
        """The file operations for the version in a folder of this name."""

    def pull_now(self, version: _Version) -> None:
        """Pull the samples of the remote, if it answers."""

    def push_now(self, version: _Version) -> None:
        """Push committed samples, if the remote answers."""

    def failed(self, error: Exception) -> None:
        """Count and log a failed read."""
