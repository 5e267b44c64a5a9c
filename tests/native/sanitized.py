"""`python -m tests.native.sanitized`: the tests of the floor with its C built under sanitizers, in build/sanitized.

First addresses and undefined behaviour, then threads. Of Python and its other libraries nothing is looked at.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build/sanitized"
TESTS = {
    "address,undefined": ("test_floor.py", "test_pool.py", "test_codecs.py"),
    "thread": ("test_pool.py",),
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves some at its end
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66 die_after_fork=0",
}


def main() -> None:
    for sanitizer, tests in TESTS.items():
        name = sanitizer.partition(",")[0]
        package = FOLDER / name
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(ROOT / "src/warmstore", package / "warmstore", ignore=shutil.ignore_patterns("*.so"))
        flags = f"-fsanitize={sanitizer} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
        build = [
            sys.executable,
            "setup.py",
            "build_ext",
            "--build-lib",
            package,
            "--build-temp",
            FOLDER / f"{name}-objects",
        ]
        subprocess.run(build, cwd=ROOT, env={**os.environ, "CFLAGS": flags}, check=True)
        library = subprocess.run(
            ["cc", f"-print-file-name=lib{name[0]}san.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        env = {**os.environ, **OPTIONS, "LD_PRELOAD": library, "PYTHONPATH": str(package)}
        said = "import warmstore._native as native; print(native.floor.__file__)"
        loaded = subprocess.run(
            [sys.executable, "-c", said], env=env, check=True, capture_output=True, text=True
        ).stdout
        assert Path(loaded.strip()).is_relative_to(package), loaded
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        if name == "thread":  # it finds no room for its shadow where addresses are random
            command = ["setarch", "-R", *command]
        paths = [str(Path(__file__).with_name(test)) for test in tests]
        subprocess.run([*command, *paths], cwd=ROOT, env=env, check=True)


if __name__ == "__main__":
    main()
