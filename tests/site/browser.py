"""Headless Chromium: what a page measures of itself, a picture of it, and its print."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The browser; the test is skipped without one."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("there is no chromium; apt-get install chromium")


def run(page: Path, *options: str, width: int = 1200, height: int = 900, dark: bool = False) -> str:
    """Open a page, and return what the browser writes to stdout."""
    command = [
        *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},{height}", "--virtual-time-budget=3000",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measure(page: Path, script: str, **options: Any) -> Any:
    """The value of a JavaScript expression in a page, as JSON."""
    told = page.with_name("measured.html")
    content = page.read_text()
    told.write_text(f"{content}<script>document.title = 'MEASURED' + JSON.stringify({script})</script>")
    found = re.search(r"<title>MEASURED(.*?)</title>", run(told, "--dump-dom", **options), re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))
