"""Draws docs/architecture.svg: the packages of warmstore by layer, their sizes, and which imports which.

Nothing in the picture is written by hand. Layers come from the import contract in pyproject.toml, sizes and imports
from the sources, imports inside functions and for type checking included. The picture holds its own data as JSON, which
tests/test_architecture.py compares with the code. `make architecture` runs this script.
"""

import ast
import json
import re
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/architecture.svg"
_PACKAGE = "warmstore"
_SOURCES = (".py", ".c", ".h")
_LEFT_OUT = ("__init__", "__main__")  # they import names of the packages and hold nothing else
_DATA = re.compile(r"<!-- architecture\n(.*?)\n-->", re.DOTALL)

_INK, _SOFT, _UP = "#1f2933", "#6b7785", "#c0392b"
_BANDS = ("#f3f5f8", "#e6eaf0")
_STEP, _ROW = 0.7, 0.62  # inches from one package to the next
_WIDTH, _HEIGHT = 1.12, 0.48  # inches, of a box
_LEFT, _TOP, _END = 1.0, 0.2, 0.15
_DOT = 0.105


@dataclass(frozen=True)
class Package:
    """A package or module right below warmstore. layer: from 0 at the bottom. lines: of Python and C."""

    name: str
    layer: int
    files: int
    lines: int


@dataclass(frozen=True)
class Arrow:
    """One package imports another. files: of `source` that do. upward: against the layers."""

    source: str
    target: str
    files: int
    upward: bool


@dataclass(frozen=True)
class Architecture:
    """What the picture shows. packages: from the top layer to the bottom; in a layer importers come first."""

    packages: list[Package]
    arrows: list[Arrow]

    def to_json(self) -> str:
        """One line a package and an arrow, so that a change is a small diff."""
        parts = (f'"{name}": [\n{_lines(items)}\n]' for name, items in vars(self).items())
        return "{\n" + ",\n".join(parts) + "\n}"

    @classmethod
    def from_json(cls, text: str) -> "Architecture":
        """The inverse of `to_json`."""
        content = json.loads(text)
        return cls(
            [Package(**package) for package in content["packages"]], [Arrow(**arrow) for arrow in content["arrows"]]
        )


def architecture_of_code(root: Path = ROOT) -> Architecture:
    """The architecture as the sources are now.

    Raises:
        ValueError: a package is in no layer of the contract, or a layer names a package that is not there.
    """
    layers = _layers(root)
    layer_of = {name: number for number, names in enumerate(layers) for name in names}
    files = _files(root / "src" / _PACKAGE)
    if layer_of.keys() != files.keys():
        odd = ", ".join(sorted(layer_of.keys() ^ files.keys()))
        raise ValueError(f"pyproject.toml has layers for other packages than src/{_PACKAGE}: {odd}")
    importers = Counter(
        (name, target)
        for name, paths in files.items()
        for path in paths
        for target in _imported(path) & (files.keys() - {name})
    )
    arrows = [
        Arrow(source, target, count, layer_of[target] > layer_of[source])
        for (source, target), count in importers.items()
    ]
    sizes = {name: sum(len(path.read_text().splitlines()) for path in paths) for name, paths in files.items()}
    names = [name for layer in reversed(layers) for name in _importers_first(layer, arrows)]
    place = {name: number for number, name in enumerate(names)}
    return Architecture(
        [Package(name, layer_of[name], len(files[name]), sizes[name]) for name in names],
        sorted(arrows, key=lambda arrow: (place[arrow.source], place[arrow.target])),
    )


def architecture_in_picture(path: Path = PICTURE) -> Architecture:
    """The architecture that a picture shows.

    Raises:
        ValueError: it is no picture of this script's.
    """
    found = _DATA.search(path.read_text())
    if found is None:
        raise ValueError(f"{path} holds no data; run `make architecture`")
    return Architecture.from_json(found[1])


def draw(architecture: Architecture, path: Path) -> None:
    """Write the picture as SVG, with the architecture as JSON in a comment. Equal architectures give equal bytes.

    Boxes stand on the diagonal. A line goes from each to the right, and at each dot down to a package that it imports;
    upward imports go to the left and up. So each line belongs to one package, and none crosses a box.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    count = len(architecture.packages)
    width = _LEFT + (count - 1) * _STEP + _WIDTH + _END
    height = _TOP + count * _ROW + _END
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasSVG(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    at = {package.name: _place(number) for number, package in enumerate(architecture.packages)}
    _draw_layers(axes, architecture.packages, width)
    _draw_arrows(axes, architecture.arrows, at)
    for package in architecture.packages:
        _draw_package(axes, package, *at[package.name])
    _draw_legend(axes, architecture.arrows, height - _END - _ROW)
    with rc_context({"svg.hashsalt": "architecture", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Title": "The packages of warmstore and their imports"})
    text = path.read_text().rstrip().removesuffix("</svg>")
    path.write_text(f"{text}<!-- architecture\n{architecture.to_json()}\n-->\n</svg>\n")


def _layers(root: Path) -> list[list[str]]:
    """Names by layer, the bottom one first."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [re.findall(r"\w+", layer) for layer in reversed(layers)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """The source files of every package, in order."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).parts[0].partition(".")[0]
        if path.suffix in _SOURCES and name not in _LEFT_OUT:
            found.setdefault(name, []).append(path)
    return found


def _imported(path: Path) -> set[str]:
    """The packages that a file imports from, anywhere in it; nothing for C."""
    if path.suffix != ".py":
        return set()
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [f"{node.module}.{name.name}" for name in node.names]
    parts = (module.split(".") for module in modules)
    return {names[1] for names in parts if names[0] == _PACKAGE and len(names) > 1}


def _importers_first(names: list[str], arrows: list[Arrow]) -> list[str]:
    """The packages of one layer, each before those that it imports."""
    inside = {(arrow.target, arrow.source) for arrow in arrows if {arrow.source, arrow.target} <= set(names)}
    left, ordered = list(names), []
    while left:
        free = [name for name in left if not any((name, other) in inside for other in left)]
        ordered.append((free or left)[0])
        left.remove(ordered[-1])
    return ordered


def _place(number: int) -> tuple[float, float]:
    """The middle of a box, in inches from the left and from the top."""
    return _LEFT + _WIDTH / 2 + number * _STEP, _TOP + (number + 0.5) * _ROW


def _draw_layers(axes: Any, packages: list[Package], width: float) -> None:
    from matplotlib.patches import Rectangle

    first = 0
    for layer in sorted({package.layer for package in packages}, reverse=True):
        count = sum(package.layer == layer for package in packages)
        top = _TOP + first * _ROW
        axes.add_patch(Rectangle((0, top), width, count * _ROW, color=_BANDS[layer % 2], linewidth=0, zorder=0))
        axes.text(0.14, top + 0.5 * _ROW, f"layer {layer}", size=9.5, color=_SOFT, va="center")
        first += count


def _draw_package(axes: Any, package: Package, x: float, y: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.06"
    axes.add_patch(
        FancyBboxPatch(corner, _WIDTH, _HEIGHT, style, facecolor="white", edgecolor=_INK, linewidth=1.1, zorder=3)
    )
    axes.text(x, y - 0.085, package.name, size=10, weight="bold", color=_INK, ha="center", va="center", zorder=4)
    files = "1 file" if package.files == 1 else f"{package.files} files"
    said = f"{files}, {package.lines / 1000:.1f}k lines"
    axes.text(x, y + 0.105, said, size=7.5, color=_SOFT, ha="center", va="center", zorder=4)


def _draw_arrows(axes: Any, arrows: list[Arrow], at: dict[str, tuple[float, float]]) -> None:
    """One row of line for each importing package, one column for each imported one, and a dot where both meet."""
    from matplotlib.patches import Circle

    rows: dict[tuple[str, bool], float] = {}  # the column that a row reaches, by package and direction
    columns: dict[tuple[str, bool], float] = {}  # the row where a column begins
    for arrow in arrows:
        (_, y), (target_x, target_y) = at[arrow.source], at[arrow.target]
        back = target_y < y
        row, column = (arrow.source, back), (arrow.target, back)
        rows[row] = (min if back else max)(rows.get(row, target_x), target_x)
        columns[column] = (max if back else min)(columns.get(column, y), y)
        axes.add_patch(Circle((target_x, y), _DOT, color=_UP if back else _INK, linewidth=0, zorder=2))
        axes.text(target_x, y, str(arrow.files), size=6.8, color="white", ha="center", va="center_baseline", zorder=4)
    for (source, back), end in rows.items():
        x, y = at[source]
        axes.plot([x + (-_WIDTH if back else _WIDTH) / 2, end], [y, y], **_line(back))
    for (target, back), start in columns.items():
        x, y = at[target]
        edge = y + (_HEIGHT if back else -_HEIGHT) / 2
        axes.plot([x, x], [start, edge + (0.06 if back else -0.06)], **_line(back))
        style = {"arrowstyle": "-|>", "color": _line(back)["color"], "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x, edge), (x, edge + (0.13 if back else -0.13)), arrowprops=style, zorder=2)


def _line(back: bool) -> dict[str, Any]:
    return {"color": _UP if back else _SOFT, "linewidth": 0.9, "linestyle": "--" if back else "-", "zorder": 1}


def _draw_legend(axes: Any, arrows: list[Arrow], bottom: float) -> None:
    """Below the diagonal, where only upward imports have lines."""
    lines = [
        ("How to read it: follow the line from a package", _INK),
        ("to the right. Each dot is an import: go down from", _INK),
        ("it to the imported package. The number counts", _INK),
        ("the files of the first package that import it.", _INK),
    ]
    if any(arrow.upward for arrow in arrows):
        lines.append(("Red, left and up: exceptions in pyproject.toml.", _UP))
    for number, (text, colour) in enumerate(reversed(lines)):
        axes.text(0.14, bottom - 0.2 * (number + 0.8), text, size=9, color=colour, va="center")


def _lines(items: list[Any]) -> str:
    return ",\n".join(f"  {json.dumps(asdict(item))}" for item in items)


if __name__ == "__main__":
    draw(architecture_of_code(), PICTURE)
