"""Paths that users give."""

import os
from pathlib import Path


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path as a user gives it: `~` at its beginning is the home folder, as in a shell.

    Raises:
        ValueError: `~name`, and no user has this name.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        text = os.fspath(path)
        raise ValueError(f"{text!r} is no path: {error} A folder of such a name is './{text}'") from None
