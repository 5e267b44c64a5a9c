"""Modules that actors import. They log every value that they compute, so that tests can count."""

import os
import time
from collections import Counter
from pathlib import Path

import torch


class Logged(torch.nn.Module):
    """Doubles its input, in some time, and appends the first column and its process to a file of that process."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        super().__init__()
        self.folder = str(folder)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        with open(f"{self.folder}/{os.getpid()}.log", "a") as file:
            file.writelines(f"{int(value)}\n" for value in x[:, 0].tolist())
        return x * 2


IGNORED = {"ignore": ["module.folder", "module.seconds"]}


def computed(folder: Path) -> Counter[int]:
    """How often each value was computed."""
    return Counter(int(line) for path in folder.glob("*.log") for line in path.read_text().split())


def processes(folder: Path) -> dict[int, int]:
    """The values that each process has computed."""
    return {int(path.stem): len(path.read_text().split()) for path in folder.glob("*.log")}
