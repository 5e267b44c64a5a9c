"""Text cleaning: rules in turn, tables of characters, spelling, and options that are descriptors."""

import html
import re
import unicodedata
from functools import partial, reduce
from string import punctuation

STOPWORDS = frozenset({"a", "an", "and", "of", "the", "to"})
QUOTES = str.maketrans({"“": '"', "”": '"', "’": "'", "–": "-", "…": "..."})
TAG = re.compile(r"<[^>]+>")
LINK = re.compile(r"https?://\S+|www\.\S+", re.IGNORECASE)
REPEATED = re.compile(r"(.)\1{2,}")
NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
UNITS = {"km": 1000, "m": 1, "cm": 0.01}
ENDINGS = [("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("s", "")]
VOWELS = "aeiou"


def strip_tags(text):
    return TAG.sub(" ", html.unescape(text))


def strip_links(text, instead="<url>"):
    return LINK.sub(instead, text)


def straighten(text):
    """Typographic quotes and dashes as plain ones; composed characters."""
    return unicodedata.normalize("NFKC", text.translate(QUOTES))


def strip_accents(text):
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def shorten_repeats(text, most=2):
    return REPEATED.sub(lambda match: match.group(1) * most, text)


def squeeze(text):
    return " ".join(text.split())


def drop_stopwords(text, stopwords=STOPWORDS):
    return " ".join(word for word in text.split() if word.lower() not in stopwords)


def hide_numbers(text, digit="0"):
    """Each number becomes zeros of the same length, so that its size still shows."""

    def hide(match):
        return re.sub(r"\d", digit, match[0])

    return NUMBER.sub(hide, text)


def to_meters(text):
    """Lengths in metres: "2 km" -> "2000 m"."""
    names = "|".join(sorted(UNITS, key=len, reverse=True))

    def convert(match):
        meters = float(match["value"]) * UNITS[match["unit"]]
        return f"{meters:g} m"

    return re.sub(rf"(?P<value>\d+(?:\.\d+)?)\s?(?P<unit>{names})\b", convert, text)


def stem(word, least=3):
    """A much reduced Porter stemmer."""
    for ending, replacement in ENDINGS:
        root = word.removesuffix(ending) + replacement
        if word.endswith(ending) and len(root) >= least and any(letter in VOWELS for letter in root):
            return root
    return word


def stems(text):
    return [stem(word.strip(punctuation).lower()) for word in text.split()]


def sentences(text, abbreviations=("dr", "mr", "e.g")):
    found, start = [], 0
    for match in re.finditer(r"[.!?]+\s+", text):
        before = text[start : match.start()].rsplit(" ", 1)[-1].lower()
        if before in abbreviations:
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    return [*found, text[start:].strip()] if text[start:].strip() else found


def chain(*rules):
    """One function of several, applied from left to right."""
    return partial(_through, rules)


def _through(rules, text):
    return reduce(lambda current, rule: rule(current), rules, text)


class Option:
    """A descriptor: a setting with a default and a check."""

    def __init__(self, default, allowed=None):
        self.default = default
        self.allowed = allowed

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.options.get(self.name, self.default)

    def __set__(self, instance, value):
        if self.allowed is not None and value not in self.allowed:
            raise ValueError(f"{self.name} is one of {self.allowed}, not {value!r}")
        instance.options[self.name] = value


class Cleaner:
    """Cleaning with switches."""

    lower = Option(True)
    accents = Option("strip", allowed=("strip", "keep"))
    longest = Option(40)

    def __init__(self, **options):
        self.options = {}
        for name, value in options.items():
            setattr(self, name, value)

    def __call__(self, text):
        text = squeeze(straighten(strip_tags(text)))
        if self.accents == "strip":
            text = strip_accents(text)
        if self.lower:
            text = text.casefold()
        return self.cut(text)

    def cut(self, text):
        if len(text) <= self.longest:
            return text
        return text[: self.longest].rsplit(None, 1)[0]


class Redactor(Cleaner):
    """Also hides names; remembers how often."""

    names = ("ann", "bob")
    mask = "x"

    def __init__(self, extra=(), **options):
        super().__init__(**options)
        self.pattern = re.compile(r"\b(" + "|".join((*self.names, *extra)) + r")\b", re.IGNORECASE)
        self.hidden = 0

    def __call__(self, text):
        text, count = self.pattern.subn(lambda match: self.mask * len(match[0]), super().__call__(text))
        self.hidden += count
        return text


def entries():
    return {
        "strip_tags": strip_tags,
        "strip_links": partial(strip_links, instead="[link]"),
        "straighten": straighten,
        "strip_accents": strip_accents,
        "shorten_repeats": shorten_repeats,
        "drop_stopwords": drop_stopwords,
        "hide_numbers": hide_numbers,
        "to_meters": to_meters,
        "stems": stems,
        "sentences": sentences,
        "chain": chain(strip_tags, straighten, str.lower, shorten_repeats, squeeze),
        "cleaner": Cleaner(),
        "cleaner_keeping": Cleaner(accents="keep", lower=False, longest=90),
        "redactor": Redactor(extra=["zoé"], accents="keep", longest=60),
    }


def examples():
    text = (
        "<p>Dr. Ann met   Bob &amp; Zoé in the “café” – soooo nice! They walked 2.5 km, 30 cm of it dancing. "
        "See HTTPS://example.org/walks now… and the ponies glasses</p>"
    )
    return {"*": (text,)}
