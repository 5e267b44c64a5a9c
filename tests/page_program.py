"""The process that runs the blocks of a page (`tests/pages.py`): each arrives as a line of JSON on standard input.

All run in one `__main__`, whose file `page.py` has them at the lines that they have on the page.
"""

import json
import os
import sys
import types
from pathlib import Path


def serve() -> None:
    tasks, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what a block prints goes to the log
    sys.path[0] = str(Path.cwd())
    file = Path("page.py").absolute()
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    sys.modules["__main__"] = main
    lines: list[str] = []
    for task in map(json.loads, tasks):
        os.environ.update(task["environment"])
        lines += [""] * (task["line"] - 1 - len(lines)) + task["code"].splitlines()
        file.write_text("\n".join(lines) + "\n")
        code = "\n" * (task["line"] - 1) + task["code"]
        exec(compile(code, str(file), "exec", dont_inherit=True), vars(main))
        sys.stdout.flush()
        answers.write("done\n")
        answers.flush()


if __name__ == "__main__":
    sys.argv[:] = ["page.py"]
    serve()
