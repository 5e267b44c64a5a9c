"""Small JSON files with a checksum of their content, so that damaged content is refused and never differs.

Such a file is an object, one of whose entries is the checksum of the others.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_CHECKSUM = "checksum"
_DIGITS = 32


def checksum_of(content: Mapping[str, Any]) -> str:
    """The checksum of an object, whatever the order of its entries and the white space between them."""
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def to_bytes(content: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The bytes of a file with this content and its checksum."""
    return json.dumps({**content, _CHECKSUM: checksum_of(content)}, indent=indent).encode()


def from_bytes(data: bytes) -> dict[str, Any]:
    """The content of a file, without the checksum. Files that earlier versions wrote have no checksum.

    Raises:
        ValueError: these bytes are no object, its content does not match the checksum, or the name of that is damaged.
    """
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    checksum = content.pop(_CHECKSUM, None)
    if is_damaged_name(content, _DIGITS) if checksum is None else checksum != checksum_of(content):
        raise ValueError("it does not match its checksum")
    return content


def is_damaged_name(content: dict[str, Any], digits: int) -> bool:
    """Whether an object that has no checksum had one, under a name that is damaged: its last entry is as long."""
    last = content[next(reversed(content))] if content else None
    return isinstance(last, str) and len(last) == digits
