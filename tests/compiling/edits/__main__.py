"""`python -m tests.compiling.edits FOLDER PATTERN [plain] [live] [blind] [kernels]`: run cases, print what is wrong."""

import re
import shutil
import sys
import time
from pathlib import Path

from tests.compiling.edits.harness import corpus, judged


def main() -> None:
    folder, pattern, *options = sys.argv[1:]
    shutil.rmtree(folder, ignore_errors=True)
    cases = [one for one in corpus() if re.search(pattern, one.name)]
    began = time.monotonic()
    verdicts = judged(cases, Path(folder), **dict.fromkeys(options, True))
    for one in verdicts:
        for what in ("errors", "wrong", "as_torch", "missed", "left"):
            for kind, said in getattr(one, what).items():
                print(f"--- {what} {one.case.name}, {kind}: {said[-400:] if what == 'errors' else said[:900]}")
        if one.shows_nothing:
            print(f"--- shows nothing: {one.case.name}: {one.shows_nothing}")
    counts = {
        what: sum(bool(getattr(one, what)) for one in verdicts)
        for what in ("wrong", "errors", "as_torch", "missed", "left", "shows_nothing")
    }
    print(len(verdicts), "cases", counts, f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
