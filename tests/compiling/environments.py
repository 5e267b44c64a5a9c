"""Environments for the tests of the compile cache, which differ where a test wants them to."""

from dataclasses import replace
from typing import Any

from warmstore.compiling.environment import Environment

HERE = Environment(
    system="Linux",
    machine="x86_64",
    glibc="2.36",
    python="cpython-3.11.7",
    abi="cpython-311-x86_64-linux-gnu",
    torch="2.13.0",
    torch_git="abc",
    torch_path="/site/torch",
    triton="3.4.0",
    cuda="12.8",
    jax="0.10.2",
    jaxlib="0.10.2",
    gpus=("NVIDIA H200",),
    compute=((9, 0),),
    driver="570.10",
    isa=("avx", "avx2", "avx512f", "fma"),
    capability="avx512",
    compiler="g++ 12",
    threads=8,
)


def elsewhere(**changes: Any) -> Environment:
    """`HERE` with some of it changed."""
    return replace(HERE, **changes)
