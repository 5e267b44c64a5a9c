"""Look-ups in files: words, prices and templates, opened when they are needed, by paths that stand in many places."""

import csv
import json
from functools import cache, partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
WORDS = HERE / "words.txt"
FILES = {"labels": str(HERE / "labels.json"), "prices": HERE / "prices.csv"}


def base_forms(path=WORDS):
    """Each form of a word to its first form."""
    forms = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            first, *others = line.split()
            forms.update(dict.fromkeys([first, *others], first))
    return forms


def lemmatize(text):
    forms = base_forms()
    return [forms.get(word, word) for word in text.lower().split()]


@cache
def labels():
    return json.loads(Path(FILES["labels"]).read_text(encoding="utf-8"))


def label(text, missing=-1):
    return [labels().get(word, missing) for word in text.split()]


def price(text, path, currency="EUR"):
    with Path(path).open(newline="") as file:
        table = {row["name"]: float(row["price"]) for row in csv.DictReader(file)}
    return [f"{table[word]:.2f} {currency}" for word in text.split() if word in table]


class PriceTable:
    """Prices as an array, read at each call with NumPy."""

    columns = (1,)

    def __init__(self, folder, name="prices.csv"):
        self.folder = folder
        self.name = name

    @property
    def path(self):
        return self.folder / self.name

    def __call__(self, text):
        values = np.loadtxt(self.path, delimiter=",", skiprows=1, usecols=self.columns)
        return values * len(text.split())


class Counter:
    """Counts the forms of a word that the file knows; the file is read once."""

    def __init__(self, path):
        self.forms = base_forms(path)

    def __call__(self, text):
        return sum(word in self.forms for word in text.lower().split())


def beside(text):
    """Names its file where it reads it."""
    with open(HERE / "words.txt") as file:
        return [text in line for line in file]


def entries():
    return {
        "lemmatize": lemmatize,
        "label": label,
        "price": partial(price, path=FILES["prices"]),
        "price_table": PriceTable(HERE),
        "counter": Counter(str(WORDS)),
        "beside": beside,
    }


def examples():
    return {"*": ("The fox walked and the owl runs",), "beside": ("walk",)}
