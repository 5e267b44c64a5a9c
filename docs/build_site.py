"""Builds the site of these pages: `make docs` runs it, and the site is in build/site.

The pages are read as they lie here, also on GitHub. So this copies them, with what the root of the repository has for
readers, lets links to other files of the repository lead to the repository, and adds a page of the reference for each
section of reference.md, which mkdocstrings fills from docstrings. Zensical's warnings and griffe's are errors.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "site-pages"
AT_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
REPOSITORY = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["repo_url"]
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
_SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def page_text(page: Path) -> str:
    """A page of the repository, with links that hold on the site."""

    def linked(found: re.Match[str]) -> str:
        target = (page.parent / found[1]).resolve()
        if not target.exists():
            raise SystemExit(f"{page.relative_to(ROOT)}: {found[1]} does not exist")
        path = target.relative_to(ROOT).as_posix()
        anchor = found[2] or ""
        if path == "README.md":
            path = "docs/index.md"
        if path in AT_THE_ROOT or path.startswith("docs/"):
            here = _place(page).parent
            return os.path.relpath(_place(ROOT / path), here) + anchor
        return f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/{path}{anchor}"

    parts = _CODE.split(page.read_text())
    return "".join(part if part.startswith("```") else _LINK.sub(linked, part) for part in parts)


def _place(file: Path) -> Path:
    """Where a file of the repository is among the pages of the site."""
    docs = ROOT / "docs"
    return PAGES / (file.relative_to(docs) if file.is_relative_to(docs) else file.name)


def reference_pages() -> dict[str, str]:
    """For each section of reference.md a page, by its title."""
    text = (ROOT / "docs" / "reference.md").read_text()
    made = {}
    for title, section in _SECTION.findall(text):
        names = re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)
        intro = _LINK.sub(r"../\1\2", section.partition("\n| ")[0])
        options = "\n    options:\n      heading_level: 2\n"
        blocks = [f"::: {_path(name)}{options}" for name in names]
        made[title] = f"# {title}\n{intro}\n" + "\n".join(blocks)
    return made


def _path(name: str) -> str:
    """The dotted name of a public name; `compile_cache` is a module."""
    return "warmstore.compiling.compile_cache" if name == "compile_cache" else f"warmstore.{name}"


def make_pages() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    for file in [*sorted((ROOT / "docs").rglob("*")), *(ROOT / name for name in AT_THE_ROOT)]:
        place = _place(file)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(page_text(file))
        elif file.suffix in (".css", ".png", ".svg"):
            shutil.copy(file, place)
    (PAGES / "reference").mkdir()
    for title, text in reference_pages().items():
        (PAGES / "reference" / f"{title.lower()}.md").write_text(text)


def configuration() -> str:
    """zensical.toml, with the pages of the reference in its navigation."""
    comment = "    # docs/build_site.py adds a page for each section of reference.md\n"
    text = (ROOT / "zensical.toml").read_text()
    assert comment in text
    return text.replace(comment, "".join(f'    "reference/{title.lower()}.md",\n' for title in reference_pages()))


def _not_in_the_navigation() -> list[str]:
    listed = configuration()
    pages = (page.relative_to(PAGES).as_posix() for page in sorted(PAGES.rglob("*.md")))
    return [page for page in pages if f'"{page}"' not in listed]


def main() -> int:
    make_pages()
    lost = _not_in_the_navigation()
    if lost:
        print(f"zensical.toml does not have {', '.join(lost)} in its navigation")
        return 1
    config = ROOT / "zensical.site.toml"  # beside the other: its paths are relative to its folder
    config.write_text(configuration())
    try:
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        config.unlink()
    said = done.stdout + done.stderr
    print(said.partition("Traceback (most recent call last)")[0])
    griffe = [line for line in said.splitlines() if "griffe" in line]
    if griffe:
        print(f"{len(griffe)} docstrings do not match their signatures")
    return 1 if done.returncode or griffe else 0


if __name__ == "__main__":
    sys.exit(main())
