"""Files of control groups that this machine does not have."""

from pathlib import Path

import pytest

from warmstore._native import cgroups


def mount(folder: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]) -> None:
    """Let this process have a text of its groups, and files of theirs."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(cgroups, "_MOUNTED", folder)
    monkeypatch.setattr(cgroups, "_OWN", folder / "own")
