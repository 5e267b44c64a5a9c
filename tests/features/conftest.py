"""Modules that count what they compute, and scripts that run in a process of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests import warm
from torch import nn

import warmstore as ws


class Counting(nn.Module):
    """Calls a function on its inputs and remembers the rows that it was given."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.rows = []

    def forward(self, x, *args, **kwargs):
        self.rows.append(len(x))
        return self.function(x, *args, **kwargs)


@pytest.fixture
def counting():
    return Counting


@pytest.fixture
def cached(tmp_path):
    """Wrap a function as a module with a cache: `cached(function, **cache options)`."""

    def make(function=lambda x: x * 2, id="id", batch_args=None, **options):
        return ws.CachedModule(Counting(function), ws.FeatureCache(tmp_path, id, **options), batch_args=batch_args)

    return make


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).requires_grad_(False).eval()


@pytest.fixture
def run_script(tmp_path):
    """Run Python source in a process of its own and return what it printed. `fresh`: in an interpreter of its own."""

    def run(source, folder=tmp_path, status=0, fresh=False, **environment):
        path = folder / "script.py"
        path.write_text(textwrap.dedent(source))
        done = (subprocess.run if fresh else warm.run)(
            [sys.executable, str(path), str(folder)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), **environment},
            cwd=Path(__file__).parent,
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    return run
