"""about.json: what a version in a tier is. Its steps, for messages, and the schema of its samples, to restore them."""

from pathlib import Path
from typing import Any

from warmstore.pipeline.tiers.tier_quota import ABOUT
from warmstore.storage import checked_json

FORMAT = 6
"""The format of versions. One of another format is removed and filled again."""


def about_bytes(steps: list[Any], schema: dict[str, Any] | None) -> bytes:
    """The bytes of the file. `schema`: see `SampleSchema.to_json`; None if the samples differ too much."""
    return checked_json.to_bytes({"format": FORMAT, "steps": steps, "schema": schema})


def about_damage(folder: Path) -> str:
    """Why the file in the folder of a version cannot be read; "" if it can, or is missing."""
    try:
        checked_json.from_bytes((folder / ABOUT).read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        return f"{folder / ABOUT} cannot be read ({error}), so that the samples are computed again"
    return ""


def read_about(folder: Path) -> dict[str, Any] | None:
    """What the file in the folder of a version says; None if it is missing, damaged or of another format."""
    try:
        about = checked_json.from_bytes((folder / ABOUT).read_bytes())
        return about if about["format"] == FORMAT else None
    except (OSError, ValueError, KeyError):
        return None
