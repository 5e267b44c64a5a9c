"""Which artifact may be used where: every rule says yes, no, and why."""

from typing import Any

import pytest
from tests.compiling.environments import HERE, elsewhere

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.rules import KINDS, choose, objections


def artifact(kind: str, **requirements: Any) -> Artifact:
    return Artifact("k", kind, "0" * 64, 1, HERE, requirements, host="builder", created=1.0)


@pytest.mark.parametrize("kind", [*KINDS, "of somebody else's"])
def test_what_was_made_here_is_used_here(kind: str) -> None:
    assert objections(artifact(kind), HERE) == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("cpp.so", {"isa": ("avx", "avx2", "fma")}, "needs a CPU with avx512f"),
    ("cpp.so", {"capability": "avx2"}, "needs capability avx512, here is avx2"),
    ("cpp.so", {"glibc": "2.35"}, "needs glibc 2.36 or newer, here is 2.35"),
    ("cpp.so", {"glibc": None}, "needs glibc 2.36 or newer, here is none"),
    ("cpp.so", {"glibc": "2.9"}, "needs glibc 2.36 or newer, here is 2.9"),
    ("cpp.so", {"machine": "aarch64"}, "needs machine x86_64, here is aarch64"),
    ("cpp.so", {"system": "Darwin"}, "needs system Linux, here is Darwin"),
    ("cpp.so", {"torch": "2.13.1"}, "needs torch 2.13.0, here is 2.13.1"),
    ("cpp.so", {"torch_git": "def"}, "needs torch_git abc, here is def"),
    ("cpp.so", {"python": "cpython-3.12.1"}, "needs python cpython-3.11, here is cpython-3.12"),
    *(
        (kind, {"abi": "cpython-311t-x86_64-linux-gnu"}, "needs abi cpython-311-x86_64-linux-gnu, here is cpython-311t")
        for kind in ("cpp.so", "fx_graph", "aot_autograd", "package", "header")
    ),
    ("cpp.source", {"torch": None}, "needs torch 2.13.0, here is none"),
    ("fx_graph", {"python": "cpython-3.12.1"}, "needs python cpython-3.11, here is cpython-3.12"),
    ("fx_graph", {"capability": "avx2"}, "needs capability avx512, here is avx2"),
    ("fx_graph", {"triton": "3.5.0"}, "needs triton 3.4.0, here is 3.5.0"),
    ("aot_autograd", {"torch": "2.12.0"}, "needs torch 2.13.0, here is 2.12.0"),
    ("pgo", {"torch": "2.12.0"}, "needs torch 2.13.0, here is 2.12.0"),
    ("autotune", {"gpus": ("NVIDIA H100",)}, "needs NVIDIA H200, here is NVIDIA H100"),
    ("autotune", {"gpus": ()}, "needs NVIDIA H200, here is none"),
    ("jax", {"jaxlib": "0.10.3"}, "needs jaxlib 0.10.2, here is 0.10.3"),
    ("jax", {"gpus": ("NVIDIA H100",)}, "needs NVIDIA H200, here is NVIDIA H100"),
    ("triton.cubin", {"compute": ((10, 0),)}, "needs compute capability 9.0, here is 10.0"),
    ("triton.cubin", {"compute": ((8, 9),)}, "needs compute capability 9.0, here is 8.9"),
    ("triton.cubin", {"compute": ()}, "needs a GPU of compute capability 9.0, here is none"),
    ("triton.cubin", {"compute": ((9, 0), (8, 0))}, "needs compute capability 9.0, here is 8.0"),
    ("triton.cubin", {"cuda": "12.6"}, "needs CUDA 12.8 or newer of the same major version, here is 12.6"),
    ("triton.cubin", {"cuda": "13.0"}, "needs CUDA 12.8 or newer of the same major version, here is 13.0"),
    ("triton.ptx", {"compute": ((8, 9),)}, "needs compute capability 9.0 or higher, here is 8.9"),
    ("triton.ptx", {"cuda": None}, "needs CUDA 12.8 or newer of the same major version, here is none"),
    ("triton.ttir", {"triton": None}, "needs triton 3.4.0, here is none"),
    ("of somebody else's", {"threads": 9}, 'is of the unknown kind "of somebody else\'s"'),
]


@pytest.mark.parametrize(("kind", "change", "why"), WRONG)
def test_what_was_made_elsewhere_is_refused_with_the_reason(kind: str, change: dict[str, Any], why: str) -> None:
    said = objections(artifact(kind), elsewhere(**change))
    assert len(said) == 1
    assert said[0].startswith(why)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("cpp.so", {"isa": (*HERE.isa, "amx_tile")}),
        ("cpp.so", {"glibc": "2.41", "driver": "1", "threads": 1, "gpus": (), "compute": (), "compiler": None}),
        ("cpp.so", {"torch_path": "/elsewhere"}),
        ("cpp.source", {"isa": (), "capability": "default", "machine": "aarch64", "glibc": None}),
        ("fx_graph", {"python": "cpython-3.11.0"}),
        ("triton.cubin", {"cuda": "12.9", "gpus": ("NVIDIA H100",)}),
        ("triton.cubin", {"compute": ((9, 0), (9, 0)), "gpus": ("NVIDIA H200",) * 2}),
        ("triton.ptx", {"compute": ((10, 0),), "cuda": "12.9"}),
        ("triton.ttir", {"gpus": (), "compute": (), "cuda": None}),
    ],
)
def test_what_does_not_matter_to_a_kind_may_differ(kind: str, change: dict[str, Any]) -> None:
    assert objections(artifact(kind), elsewhere(**change)) == []


UNKNOWN: list[tuple[str, dict[str, Any], str]] = [
    *((kind, {"compute": (), "gpus": ()}, "was made without a GPU") for kind in ("triton.cubin", "triton.ptx")),
    *(
        (kind, {"compute": (), "gpus": ()}, "was made without a GPU")
        for kind in ("fx_graph", "aot_autograd", "package")
    ),
    *(
        (kind, {"compute": ((0, 0),), "gpus": ("unknown",)}, "needs compute capability unknown")
        for kind in ("triton.cubin", "triton.ptx", "fx_graph", "package")
    ),
    ("cpp.so", {"glibc": None}, "needs glibc none, here is 2.36"),
    ("cpp.so", {"isa": ()}, "was built for a CPU whose extensions are unknown"),
    ("cpp.source", {"torch_git": None}, "needs torch_git none, here is abc"),
    ("answer", {"compiler": None}, "needs compiler none, here is g++ 12"),
    ("triton.cubin", {"cuda": None}, "was made without CUDA, here is 12.8"),
]


@pytest.mark.parametrize(("kind", "change", "why"), UNKNOWN)
def test_what_is_unknown_is_the_same_only_as_what_is_unknown_too(kind: str, change: dict[str, Any], why: str) -> None:
    made = Artifact("k", kind, "0" * 64, 1, elsewhere(**change))
    assert objections(made, elsewhere(**change)) == []
    (reason,) = objections(made, HERE)
    assert reason.startswith(why)
    any_value = Artifact("k", kind, "0" * 64, 1, elsewhere(**change), dict.fromkeys(change))
    assert objections(any_value, HERE) == []


def test_requirements_stand_in_for_the_environment() -> None:
    portable = artifact("cpp.so", isa=["avx2", "fma"], capability=None)
    assert objections(portable, elsewhere(isa=("avx", "avx2", "fma"), capability="avx2")) == []
    assert objections(portable, elsewhere(isa=("avx",), capability="default")) == ["needs a CPU with avx2, fma"]
    special = artifact("triton.ptx", architecture="sm_90a")
    assert objections(special, HERE) == []
    assert objections(special, elsewhere(compute=((10, 0),)))
    strict = artifact("cpp.so", compute=[[9, 0]], gpus=["NVIDIA H200"])
    assert objections(strict, HERE) == []


MIXED = elsewhere(compute=((8, 0), (9, 0)), gpus=("NVIDIA A100", "NVIDIA H200"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_made_on_a_machine_with_two_kinds_of_gpus_is_used_there(kind: str) -> None:
    assert objections(Artifact("k", kind, "0" * 64, 1, MIXED), MIXED) == []


@pytest.mark.parametrize("kind", ["package", "fx_graph", "triton.cubin"])
def test_what_was_made_on_either_of_two_kinds_of_gpus_is_not_used_where_there_is_one(kind: str) -> None:
    made = Artifact("k", kind, "0" * 64, 1, MIXED)
    assert objections(made, HERE) == ["needs compute capability 8.0 and 9.0, here is 9.0"]


def test_every_reason_is_said() -> None:
    said = objections(artifact("cpp.so"), elsewhere(torch="2.1", glibc="2.1", isa=()))
    assert len(said) == 3
    _, reasons = choose([artifact("cpp.so"), artifact("cpp.source")], elsewhere(torch="2.1"))
    assert reasons == [
        "cpp.so made on builder: needs torch 2.13.0, here is 2.1",
        "cpp.source made on builder: needs torch 2.13.0, here is 2.1",
    ]


def test_of_equally_specific_ones_the_most_demanding_wins_and_then_the_newest() -> None:
    portable, native = artifact("cpp.so", isa=["avx2"]), artifact("cpp.so")
    assert choose([portable, native], HERE)[0] == native
    assert choose([native, portable], elsewhere(isa=("avx2",)))[0] == portable
    older = Artifact("k", "cpp.so", "1" * 64, 1, HERE, {}, created=0.5)
    assert choose([older, native], HERE)[0] == native
    assert choose([], HERE) == (None, [])
