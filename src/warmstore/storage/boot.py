"""When this machine was started: what was written before may be lost, and its devices may be others."""

from pathlib import Path

import psutil


def boot_id() -> bytes:
    """An id of this start of the machine, at most 40 bytes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return str(int(psutil.boot_time())).encode()
