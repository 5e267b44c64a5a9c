"""Runs every callable of the corpus below a folder, and says as JSON which files each opens, and which its key counts.

A file counts where the key is another one after an edit of the file.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.identity.engine import identify
from tests.identity.worlds import PROGRAMS, module_name, run


def main(root: str) -> None:
    sys.path.insert(0, root)
    opened: dict[str, None] = {}
    listening = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith(os.path.realpath(root)) and not path.endswith((".py", ".pyc")):
                opened[path] = None

    sys.addaudithook(hook)
    said = []
    for program in PROGRAMS:
        module = importlib.import_module(module_name(program))
        entries, examples = module.entries(), module.examples()
        for name, entry in entries.items():
            before = identify(entry)
            opened.clear()
            listening = True
            run(entry, examples.get(name, examples.get("*")))
            listening = False
            if opened:
                said.append({"entry": f"{program}.{name}", **tried(module.entries()[name], list(opened), before)})
    print(json.dumps(said))


def tried(entry: Any, files: list[str], before: Any) -> dict[str, Any]:
    """Edit each file, and see whether that tells."""
    told, words = [], []
    for path in map(Path, files):
        text = path.read_bytes()
        path.write_bytes(text + b"\n")
        after = identify(entry)
        if after.digest != before.digest:
            told.append(path.name)
            words.append(before.difference(after))
        path.write_bytes(text)
    return {
        "files": [Path(path).name for path in files],
        "told": told,
        "words": words,
        "unknown": dict(before.unknown),
    }


if __name__ == "__main__":
    main(sys.argv[1])
