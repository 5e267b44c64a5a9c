"""Draws docs/figures.png, the picture of the README, from the table in docs/benchmarks.md.

The picture holds its figures as text, which a test compares with the table: run this again when the benchmark has run.
"""

import json
import re
from pathlib import Path

import matplotlib

DOCS = Path(__file__).parent
PICTURE = DOCS / "figures.png"
_NAMES = {
    "torch.index_select in RAM": "one array in RAM (the limit)",
    "warmstore": "warmstore, from disk",
    "numpy memmap, rows.take": "NumPy memory map",
    "HF datasets, arrow by hand": "Hugging Face datasets",
}
_SHOWN = ("LMDB", "loaderx", "ArrayRecord", "h5py", "Lance")


def figures() -> dict[str, float]:
    """Median µs to gather 256 random rows of 2 KiB, by contestant, called in turn."""
    text = (DOCS / "benchmarks.md").read_text().partition("\n## gather\n")[2]
    table = text.partition("**call by call**")[2].partition("\n\n**")[0]
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d,.]+) \|", table, re.MULTILINE))
    found = {_NAMES.get(name, name): float(value.replace(",", "")) for name, value in rows.items()}
    return {name: value for name, value in found.items() if name in (*_NAMES.values(), *_SHOWN)}


def draw() -> None:
    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = dict(sorted(figures().items(), key=lambda entry: -entry[1]))
    figure, axes = pyplot.subplots(figsize=(8, 3.2), dpi=160)
    colors = ["#2a9d6f" if "warmstore" in name else "#8d99a6" if "limit" in name else "#c4cbd3" for name in shown]
    bars = axes.barh(list(shown), list(shown.values()), color=colors, height=0.72)
    axes.bar_label(bars, [f"{value:,.0f}" for value in shown.values()], padding=4, color="#1f2933", fontsize=9)
    axes.set_xlim(0, max(shown.values()) * 1.12)
    axes.set_title("µs to gather 256 random rows of 2 KiB, in the page cache", loc="left", color="#1f2933", fontsize=10)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9, colors="#1f2933")
    axes.set_xticks([])
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Description": json.dumps(shown), "Software": ""})


if __name__ == "__main__":
    draw()
