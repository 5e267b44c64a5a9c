"""The settings of `init`, from its arguments or environment variables, validated."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from warmstore.compiling.hooks.compiler_profiles import choose
from warmstore.compiling.remote.remote_settings import RemoteSettings
from warmstore.compiling.store.artifact_quota import LEAST
from warmstore.compiling.store.eviction_order import order_of
from warmstore.remote.offline import is_offline
from warmstore.storage.humanize import parse_size
from warmstore.storage.user_paths import user_path


@dataclass(frozen=True)
class Settings:
    """Settings of a compile cache, made and validated by `of`; see `init`. `max_size` is in bytes.

    `place`: The store's folder, absolute; or why there is none. `job_is_named`: Whether the user named the job;
    otherwise `job` is the name of the script.
    """

    place: Path | str
    max_size: int
    eviction: str
    profile: str
    job: str
    job_is_named: bool
    offline: bool
    wait: float
    remote: RemoteSettings | None = None

    @classmethod
    def of(
        cls,
        local_dir: str | os.PathLike[str] | None,
        max_size: int | str | None,
        eviction: str,
        profile: str,
        job: str | None,
        offline: bool | None,
        wait: float,
        remote: RemoteSettings | None = None,
    ) -> "Settings":
        """Arguments override variables, and variables override defaults. Raises ValueError for an invalid value."""
        order_of(eviction)
        if profile == "auto":
            profile = os.environ.get("WARMSTORE_PROFILE") or profile
        choose(profile)
        if not wait >= 0:
            raise ValueError(f"wait={wait!r} must be a number of seconds, 0 or more")
        gigabytes = os.environ.get("WARMSTORE_MAX_SIZE_GB")
        size = parse_size(max_size if max_size is not None else f"{gigabytes} GB" if gigabytes else "100GB")
        if size < LEAST:
            raise ValueError(f"max_size={max_size or gigabytes!r} is less than the {LEAST:,} bytes that a store needs")
        name = job or os.environ.get("WARMSTORE_JOB")
        return cls(
            place=_place(local_dir),
            max_size=size,
            eviction=eviction,
            profile=profile,
            job=_readable(name or default_job()),
            job_is_named=bool(name),
            offline=is_offline() if offline is None else offline,
            wait=float(wait),
            remote=remote,
        )

    @property
    def folder(self) -> Path:
        """The store's folder, absolute. Raises FileNotFoundError if there is none, as for a user without a home."""
        if isinstance(self.place, str):
            raise FileNotFoundError(self.place)
        return self.place


def _place(local_dir: str | os.PathLike[str] | None) -> Path | str:
    try:
        return user_path(local_dir or os.environ.get("WARMSTORE_CACHE_DIR") or default_folder()).absolute()
    except (RuntimeError, ValueError, OSError) as error:  # there is no home, or the working directory is gone
        return f"there is no folder for the store: {error}; set WARMSTORE_CACHE_DIR or local_dir"


def _readable(name: str) -> str:
    """A name without the bytes of a file's name that are no UTF-8, which SQLite does not take."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def default_folder() -> Path:
    """The user's cache folder for warmstore's compiled artifacts."""
    from platformdirs import user_cache_path

    return user_cache_path("warmstore") / "compiled"


def default_job() -> str:
    """The name of the program's script, or of its module for `python -m`."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0] if getattr(sys, "argv", None) else "").stem or "interactive"
