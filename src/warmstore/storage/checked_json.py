"""Small JSON files with a checksum of their content, so that damaged content is refused and never differs.

Such a file is an object, one of whose entries is the checksum of the others.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_CHECKSUM = "checksum"


def checksum_of(content: Mapping[str, Any]) -> str:
    """The checksum of an object, whatever the order of its entries and the white space between them."""
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def to_bytes(content: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """The bytes of a file with this content and its checksum."""
    return json.dumps({**content, _CHECKSUM: checksum_of(content)}, indent=indent).encode()


def from_bytes(data: bytes) -> dict[str, Any]:
    """The content of a file, without the checksum. Files that earlier versions wrote have no checksum.

    Raises:
        ValueError: these bytes are no object, or its content does not match the checksum.
    """
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    checksum = content.pop(_CHECKSUM, None)
    if checksum is not None and checksum != checksum_of(content):
        raise ValueError("it does not match its checksum")
    return content
