"""Memory that is this process's own: what a cache costs beyond the page cache that every process shares.

Resident size counts mapped file pages, which belong to all; here only anonymous and dirtied private pages count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def private_bytes() -> int:
    """Anonymous plus private dirty bytes of this process, by the kernel's own figures (Linux).

    Most anonymous pages are private dirty as well, so of each mapping the larger of the two counts, not their sum.
    """
    total, anonymous, dirty = 0, 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Anonymous:"):
            anonymous = int(line.split()[1])
        elif line.startswith("Private_Dirty:"):
            dirty = int(line.split()[1])
        elif line.startswith("VmFlags:"):  # the last line of a mapping
            total += max(anonymous, dirty)
    return total << 10


def anonymous_bytes() -> int:
    """Anonymous bytes of this process: without the files that it maps, shared memory among them."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    return 0


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run `python -m module arguments` and read the JSON object it prints last."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} failed in a fresh process: {done.stderr.strip().splitlines()[-1:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
