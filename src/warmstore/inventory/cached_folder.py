"""CachedFolder: one store or cache on the disk, with its size, use and the command that frees its bytes."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from warmstore.storage.registry import COMPILED, COPY, FEATURES, FUNCTIONS, PIPELINE, STORE

UNREADABLE = "unreadable"
"""The kind of a folder that cannot be listed, so that what it holds is unknown."""

KINDS = {
    STORE: "record stores",
    FEATURES: "feature caches",
    FUNCTIONS: "results of functions",
    PIPELINE: "cached samples of pipelines",
    COMPILED: "compile caches",
    COPY: "local copies of remotes",
    UNREADABLE: "folders that cannot be read",
}
"""What the kinds are called, in the order of lists."""


@dataclass(frozen=True)
class CachedFolder:
    """A record store, one version of a feature cache, the results of a cached function, one version of a pipeline's
    disk tier, a compile cache, the local copy of a store at a URL, or a folder that cannot be read.

    entries: records, samples or artifacts; None if unknown. nbytes: allocated on the disk (`allocated_bytes`). created,
    used: times in seconds since 1970; `used` is that of the last known lookup or write. hits, misses: lookups of all
    closed runs; None if they are not counted. in_use: whether a live process writes to it, or holds it. is_data:
    whether its content may exist nowhere else, so that it is removed only if that is asked for: record stores, and
    feature caches that `put_batch` alone filled. problem: why it cannot be read, or "".
    """

    kind: str
    path: Path
    entries: int | None = None
    nbytes: int = 0
    created: float = 0.0
    used: float = 0.0
    hits: int | None = None
    misses: int | None = None
    in_use: bool = False
    is_data: bool = False
    problem: str = ""

    @property
    def is_unknown(self) -> bool:
        """Whether what cannot be read leaves open what the rest is: it may exist nowhere else, and nothing removes it.
        Damaged versions of pipelines are known for caches."""
        return self.kind == UNREADABLE or (bool(self.problem) and self.kind != PIPELINE)

    @property
    def free(self) -> str:
        """The command that frees its bytes; "" if it is unknown what they are."""
        path = shlex.quote(str(self.path))
        if self.is_unknown:
            return ""
        if self.kind == PIPELINE:
            return f"warmstore pipelines clear {shlex.quote(str(self.path.parent))} {shlex.quote(self.path.name)}"
        if self.kind == COMPILED:
            return f"warmstore compiled clear --dir {path}"
        return f"warmstore gc {path} --older-than 0s" + (" --include-data" if self.is_data else "")
