"""The global settings of torch that decide results, as texts.

They are read at every check, so the getters of C are called where there are any. Other versions of torch lack some of
them, and some raise once the older and the newer of two names of a setting were used.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter, call
from typing import Any

import torch

_NAMES = (
    "_get_float32_matmul_precision", "_get_cublas_allow_tf32", "_get_cudnn_allow_tf32", "_get_onednn_allow_tf32",
    "_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation", "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_cudnn_enabled", "_get_cudnn_deterministic", "_get_cudnn_benchmark", "_get_mkldnn_enabled",
    "_get_mkldnn_deterministic", "_get_nnpack_enabled",
    "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_linalg_preferred_backend", "_get_blas_preferred_backend",
)  # fmt: skip
_PRECISIONS = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "conv"), ("cuda", "rnn"), ("cuda", "matmul"),
    ("mkldnn", "all"), ("mkldnn", "conv"), ("mkldnn", "rnn"), ("mkldnn", "matmul"),
)  # fmt: skip

_PRECISION = "_get_fp32_precision_getter"
_OWN_ENGINE = "x86" if platform.machine() in ("x86_64", "AMD64") else "qnnpack"
_EINSUM: Any = torch.backends.opt_einsum
_SMALLEST = sys.float_info.min  # a variable: Python would compute a product of constants when it compiles

_print_options_of = attrgetter("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


def _engine() -> str:
    """The engine of quantised operators; "" for that which the machine has by default."""
    engine: str = torch.backends.quantized.engine
    return "" if engine == _OWN_ENGINE else engine


def _order_of_attention() -> tuple[int, ...]:
    return tuple(torch._C._get_sdp_priority_order())


def _contraction() -> tuple[Any, ...]:
    """Whether and how `torch.einsum` finds an order, read in a third of the time that the attributes take."""
    own, shared = vars(_EINSUM), vars(_EINSUM.m)
    return own.get("enabled", shared["enabled"]), own.get("strategy", shared["strategy"])


def _print_options() -> tuple[Any, ...]:
    options: tuple[Any, ...] = _print_options_of(torch._tensor_str.PRINT_OPTS)
    return options


_GETTERS: tuple[Callable[[], Any], ...] = (
    *(getattr(torch._C, name) for name in _NAMES if hasattr(torch._C, name)),
    *(partial(torch._C._get_fp32_precision_getter, *pair) for pair in _PRECISIONS if hasattr(torch._C, _PRECISION)),
    *((_order_of_attention,) if hasattr(torch._C, "_get_sdp_priority_order") else ()),
    torch.get_default_dtype, torch.backends.mha.get_fastpath_enabled,
    torch.__future__.get_overwrite_module_params_on_conversion, torch.__future__.get_swap_module_params_on_conversion,
    _engine, _print_options, _contraction,
)  # fmt: skip


OF_OPERATORS = tuple(getter for getter in _GETTERS if getter is not _print_options)
"""The settings that decide the results of operators."""


def settings_text(getters: tuple[Callable[[], Any], ...] = _GETTERS) -> str:
    """The settings of the process that decide results."""
    try:
        return _joined(tuple(map(call, getters)))
    except RuntimeError:
        return _joined(tuple(map(value_of, getters)))


def value_of(getter: Callable[[], Any]) -> Any:
    """The value of a setting; "mixed" where torch cannot tell: the program has used old and new names of it."""
    try:
        return getter()
    except RuntimeError:
        return "mixed"


@lru_cache(maxsize=16)
def _joined(values: tuple[Any, ...]) -> str:
    return " ".join(map(str, values))


def text_of_thread() -> str:
    """The settings of the current thread: the device on which it makes tensors, and whether small numbers become 0."""
    return f"{torch.get_default_device()}{' flushes denormals' if _SMALLEST * 0.5 == 0.0 else ''}"
