"""Parsers under libFuzzer, by atheris: coverage of the package's Python code leads the mutations of real inputs.

Each parser has a corpus, which later parts continue. A part is so many inputs in a process of its own, so that a crash
of the interpreter, a hang, and memory without bounds show. Run as a program, this file is that process.

    python -m tests.faults.fuzz_campaign PARSER CORPUS [options of libFuzzer]
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tests.faults.mutations import TOKENS

SECONDS = 20
"""Time that one input may take."""
SHARED = Path("/dev/shm")
MEMORY = 2048
"""MiB that a process may take."""
_ENDS = {70: "hangs", 71: "memory"}
"""How a process ends with what libFuzzer has found; else it is an exception or a crash."""
_EXCEPTION = "Uncaught Python exception"


@dataclass
class FuzzResult:
    """What came of a part: inputs, covered edges of the code, and inputs that failed, by how."""

    parser: str
    inputs: int = 0
    edges: int = 0
    exceptions: int = 0
    crashes: int = 0
    hangs: int = 0
    memory: int = 0
    failures: list[str] = field(default_factory=list)


def is_installed() -> bool:
    """Whether there is atheris, of the extra `fuzz`."""
    return importlib.util.find_spec("atheris") is not None


def campaign(parser: str, number: int, inputs: int, corpus: Path) -> FuzzResult:
    """Give a parser so many inputs; `number`: of the part, by which they differ. corpus: the folder of all corpora."""
    result = FuzzResult(parser)
    mine = corpus / sha256(parser.encode()).hexdigest()[:8]
    mine.mkdir(parents=True, exist_ok=True)
    if not any(mine.iterdir()):
        from tests.faults.fuzzed_parsers import PARSERS

        for at, data in enumerate(PARSERS[parser].inputs):
            (mine / f"seed{at}").write_bytes(data)
    words = ["".join(f"\\x{byte:02x}" for byte in token) for token in TOKENS]
    (corpus / "words").write_text("".join(f'"{word}"\n' for word in words))
    options = {
        "dict": corpus / "words",
        "runs": inputs,
        "seed": number + 1,
        "timeout": SECONDS,
        "rss_limit_mb": MEMORY,
        "max_len": 8192,
        "print_final_stats": 1,
        "artifact_prefix": f"{corpus}/{mine.name}-",
    }
    command = [sys.executable, "-m", __spec__.name, parser, str(mine)]
    command += [f"-{name}={value}" for name, value in options.items()]
    with tempfile.TemporaryDirectory(prefix="warmstore-fuzz-", dir=SHARED if SHARED.is_dir() else None) as scratch:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "TMPDIR": scratch, "XDG_STATE_HOME": scratch},
        )
    if found := re.search(r"stat::number_of_executed_units:\s*(\d+)", ended.stderr):
        result.inputs = int(found[1])
    result.edges = max(map(int, re.findall(r"cov: (\d+)", ended.stderr)), default=0)
    if ended.returncode:
        kind = _ENDS.get(ended.returncode) or ("exceptions" if _EXCEPTION in ended.stdout + ended.stderr else "crashes")
        setattr(result, kind, 1)
        result.failures.append(f"{parser}, part {number}: {kind}\n{(ended.stdout + ended.stderr)[-3000:]}")
    return result


def _fuzz() -> None:
    import atheris

    with atheris.instrument_imports(include=["warmstore"]):
        from tests.faults.fuzzed_parsers import PARSERS
    parser = PARSERS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: parser(data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz()
