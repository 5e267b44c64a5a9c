"""Tokenisers: byte pairs, word pieces, regular expressions and characters."""

import re
from collections import Counter, OrderedDict
from enum import IntEnum, unique
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

WORD = re.compile(r"[a-z]+|\d+|[^\sa-z\d]", re.IGNORECASE)
CONTRACTIONS = {"n't": " not", "'re": " are", "'ll": " will"}


@unique
class Special(IntEnum):
    PAD = 0
    UNK = 1
    BOS = 2
    EOS = 3

    @property
    def text(self):
        return f"<{self.name.lower()}>"


class Encoding(NamedTuple):
    ids: tuple
    tokens: tuple
    truncated: bool = False

    def mask(self, length):
        return [1] * len(self.ids) + [0] * (length - len(self.ids))


def expand(text):
    for short, long in CONTRACTIONS.items():
        text = text.replace(short, long)
    return text


def words(text, lower=True):
    text = expand(text)
    return WORD.findall(text.lower() if lower else text)


def pairs(symbols):
    return list(pairwise(symbols))


class BytePairs:
    """Byte-pair encoding with ranked merges; remembers the words it has seen."""

    end = "</w>"

    def __init__(self, merges, capacity=1000):
        self.ranks = {tuple(merge.split()): rank for rank, merge in enumerate(merges)}
        self.capacity = capacity
        self.cache = OrderedDict()

    @classmethod
    def learn(cls, text, count):
        """Merges of the most frequent pairs of `text`."""
        counts = Counter((*word, cls.end) for word in words(text))
        merges = []
        for _ in range(count):
            frequency = Counter()
            for symbols, times in counts.items():
                for pair in pairs(symbols):
                    frequency[pair] += times
            best = max(frequency, key=lambda pair: (frequency[pair], pair))
            merges.append(" ".join(best))
            counts = Counter({cls._merge(symbols, best): times for symbols, times in counts.items()})
        return cls(merges)

    @staticmethod
    def _merge(symbols, pair):
        merged, at = [], 0
        while at < len(symbols):
            step = 2 if tuple(symbols[at : at + 2]) == pair else 1
            merged.append("".join(symbols[at : at + step]))
            at += step
        return tuple(merged)

    def split(self, word):
        if word not in self.cache:
            symbols = (*word, self.end)
            while len(symbols) > 1:
                best = min(pairs(symbols), key=lambda pair: self.ranks.get(pair, float("inf")))
                if best not in self.ranks:
                    break
                symbols = self._merge(symbols, best)
            self.cache[word] = symbols
            if len(self.cache) > self.capacity:
                self.cache.popitem(last=False)
        return self.cache[word]

    def __call__(self, text):
        return [symbol for word in words(text) for symbol in self.split(word)]


class WordPieces:
    """Greedy longest match, as in BERT."""

    prefix = "##"
    longest = 12

    def __init__(self, vocabulary):
        self.vocabulary = frozenset(vocabulary)

    def split(self, word):
        if len(word) > self.longest:
            return [Special.UNK.text]
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = (self.prefix if start else "") + word[start:end]
                if piece in self.vocabulary:
                    break
            else:
                return [Special.UNK.text]
            pieces.append(piece)
            start = end
        return pieces

    def __call__(self, text):
        return list(chain.from_iterable(self.split(word) for word in words(text)))


class Vocabulary(dict):
    """Token to id; what is missing is unknown."""

    def __missing__(self, token):
        return Special.UNK

    @classmethod
    def of(cls, tokens, least=1):
        counts = Counter(tokens)
        common = sorted((token for token in counts if counts[token] >= least), key=lambda one: (-counts[one], one))
        return cls({token: at + len(Special) for at, token in enumerate(common)})


def encode(text, vocabulary, split=words, most=6):
    tokens = split(text)
    truncated = len(tokens) > most
    tokens = tokens[:most]
    ids = (Special.BOS, *(vocabulary[token] for token in tokens), Special.EOS)
    return Encoding(tuple(int(one) for one in ids), tuple(tokens), truncated)


def encode_padded(text, vocabulary, length=10):
    encoding = encode(text, vocabulary)
    ids = list(encoding.ids) + [int(Special.PAD)] * (length - len(encoding.ids))
    return {"ids": ids, "mask": encoding.mask(length), "truncated": encoding.truncated}


def decode(ids, tokens):
    """Text of ids, special ones left out."""
    return " ".join(tokens[one - len(Special)] for one in ids if one not in set(Special))


def ngrams(text, low=2, high=3, buckets=97):
    """Hashed character n-grams: a sorted list of (bucket, count)."""
    marked = f"<{text.lower()}>"
    counts = Counter()
    for size in range(low, high + 1):
        for at in range(len(marked) - size + 1):
            code = 0
            for letter in marked[at : at + size]:
                code = (code * 31 + ord(letter)) % buckets
            counts[code] += 1
    return sorted(counts.items())


def byte_ids(text, offset=len(Special)):
    return [byte + offset for byte in text.encode("utf-8")]


CORPUS = "the lower the newer the lowest newest wide wider widest don't they're 42"


def entries():
    vocabulary = Vocabulary.of(words(CORPUS))
    learned = BytePairs.learn(CORPUS, 12)
    pieces = WordPieces(["low", "##er", "##est", "new", "the", "wid", "##e", "##r"])
    return {
        "words": words,
        "words_as_written": partial(words, lower=False),
        "byte_pairs": learned,
        "byte_pairs_given": BytePairs(["l o", "lo w", "e r", "er </w>"], capacity=2),
        "word_pieces": pieces,
        "encode": partial(encode, vocabulary=vocabulary),
        "encode_pieces": partial(encode, vocabulary=Vocabulary.of(pieces.vocabulary), split=pieces, most=4),
        "encode_padded": partial(encode_padded, vocabulary=vocabulary),
        "decode": partial(decode, tokens=list(vocabulary)),
        "ngrams": ngrams,
        "byte_ids": byte_ids,
    }


def examples():
    text = "They don't lower the newest, widest 42 flags; we're slower."
    return {"*": (text,), "decode": ([2, 4, 7, 5, 3],)}
