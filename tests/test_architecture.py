"""docs/architecture.md and its picture say what the code is. `make architecture` draws the picture anew."""

import re
from pathlib import Path

import pytest
from docs.architecture_picture import ROOT, Architecture, architecture_in_picture, architecture_of_code

PAGE = (ROOT / "docs/architecture.md").read_text()
SOURCES = ROOT / "src/warmstore"
_NEAR = 0.2  # sizes and counts may drift by so much before the picture has to be drawn anew, and by a few files
_FEW = 3

_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|c|h|md|toml))`|\]\(([\w./-]+)\)")
_DEFINED_IN = re.compile(r"`([A-Za-z_][\w.]*)`,?\s+\(?`([\w/]+\.(?:py|c))`\)")
_TASK = re.compile(r"^\| ([^|]+) \| `([\w/]+\.py)` \| ([^|]+) \|$", re.MULTILINE)


def _found(path: str) -> Path:
    """A path of the page: below the sources, or below the repository, or beside the page."""
    places = [folder / path for folder in (SOURCES, ROOT, ROOT / "docs")]
    return next((place for place in places if place.exists()), places[0])


def _defines(path: Path, name: str) -> bool:
    """Whether a file defines a function, class, method, constant or attribute; of `A.b` both A and b."""
    if not path.exists():
        return False
    text = path.read_text()
    if path.suffix == ".c":
        return re.search(rf"\b{name}\w*\(", text) is not None
    return all(
        re.search(rf"^\s*(?:(?:async )?def|class) {part}\b|^(?:\s+self\.)?{part}\b[^=\n]*= ", text, re.MULTILINE)
        for part in name.split(".")
    )


@pytest.fixture(scope="module")
def now() -> Architecture:
    return architecture_of_code()


def test_a_class_name_stands_for_one_class() -> None:
    """Those that other files may use: names that begin with an underscore are a file's own."""
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(path.relative_to(SOURCES).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_source_file_is_too_long_to_read_at_once() -> None:
    lengths = {
        path.relative_to(SOURCES).as_posix(): len(path.read_text().splitlines()) for path in SOURCES.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > 450} == {}
    assert sorted(lengths.values())[len(lengths) // 2] < 150


class TestPicture:
    def test_has_the_layers_and_packages_of_the_code(self, now: Architecture) -> None:
        drawn = architecture_in_picture()
        assert [(one.name, one.layer) for one in drawn.packages] == [(one.name, one.layer) for one in now.packages]

    def test_has_the_imports_of_the_code(self, now: Architecture) -> None:
        drawn = architecture_in_picture()
        arrows = [{(one.source, one.target, one.upward) for one in each.arrows} for each in (drawn, now)]
        assert arrows[0] == arrows[1]

    def test_has_about_the_sizes_of_the_code(self, now: Architecture) -> None:
        drawn = architecture_in_picture()
        for before, after in zip(drawn.packages, now.packages, strict=True):
            assert before.files == pytest.approx(after.files, rel=_NEAR, abs=_FEW), before.name
            assert before.lines == pytest.approx(after.lines, rel=_NEAR, abs=100), before.name

    def test_a_package_without_a_layer_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        (tmp_path / "src/warmstore/attic").mkdir(parents=True)
        (tmp_path / "src/warmstore/attic/__init__.py").touch()
        with pytest.raises(ValueError, match=r"other packages than src/warmstore: .*attic"):
            architecture_of_code(tmp_path)


class TestPage:
    def test_every_path_is_there(self) -> None:
        paths = {first or second for first, second in _PATH.findall(PAGE)}
        assert len(paths) > 60
        assert not [path for path in sorted(paths) if not _found(path).exists()]

    def test_every_named_function_is_where_the_page_says(self) -> None:
        named = _DEFINED_IN.findall(PAGE)
        assert len(named) > 80
        assert not [f"{name} in {path}" for name, path in named if not _defines(_found(path), name)]

    def test_every_task_names_what_its_file_defines(self) -> None:
        tasks = _TASK.findall(PAGE)
        assert len(tasks) == 31
        assert len({path for _, path, _ in tasks}) == 31
        for task, path, what in tasks:
            # What is named before another file is named stands in the file of the row.
            own = re.split(r"`[\w/]+\.(?:py|md)`|; a module", what)[0]
            names = [name for name in re.findall(r"`([A-Za-z_][\w.]*)`", own) if not name.startswith("warmstore ")]
            text = (SOURCES / path).read_text()
            assert names or path == "errors.py", task
            assert all(part in text for name in names for part in name.split(".")), task

    def test_every_package_has_a_row(self, now: Architecture) -> None:
        rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
        assert sorted(rows) == sorted(one.name for one in now.packages)
