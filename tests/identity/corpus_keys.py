"""Prints the keys of all callables of the corpus below a folder, as JSON. The second argument shuffles their order."""

import importlib
import json
import random
import sys

import torch
from tests.identity.engine import identify
from tests.identity.worlds import PROGRAMS, module_name


def main(root: str, seed: str) -> None:
    sys.path.insert(0, root)
    keys = {}
    programs = list(PROGRAMS)
    random.Random(seed).shuffle(programs)
    for program in programs:
        torch.manual_seed(0)
        module = importlib.import_module(module_name(program))
        torch.manual_seed(0)
        entries = list(module.entries().items())
        random.Random(seed).shuffle(entries)
        for name, entry in entries:
            keys[f"{program}.{name}"] = identify(entry).digest
    print(json.dumps(keys))


if __name__ == "__main__":
    main(*sys.argv[1:])
