"""The control groups of Linux that limit this process, of version 2 and 1.

https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html
"""

from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def group_folders(controller: str) -> list[Path]:
    """The folders of this process's group and of all groups above it, whose limits hold too.

    A container sees its own group as the first of all. A folder may be missing, and has the files of one version, or
    none. Systems without control groups have no folders.

    Args:
        controller: such as "memory". Each has a tree of its own in version 1.
    """
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _MOUNTED / controller if controllers else _MOUNTED
            own = root / path.lstrip("/")
            found += [own, *[folder for folder in own.parents if folder.is_relative_to(root)]]
    return found
