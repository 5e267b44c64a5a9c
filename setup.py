"""Builds the native floor, `warmstore._native.compiled`, where there is a C compiler; all else is in pyproject.toml."""

import sysconfig
from pathlib import Path

import pyarrow
from setuptools import Extension, setup

FOLDER = Path("src/warmstore/_native")
# The stable ABI: one wheel for all versions of Python from 3.11 on. Python without the GIL has none.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "warmstore._native.compiled",
            sorted(map(str, FOLDER.glob("*.c"))),
            depends=sorted(map(str, FOLDER.glob("*.h"))),
            include_dirs=[str(Path(pyarrow.get_include(), "arrow/vendored/xxhash"))],
            define_macros=[("Py_LIMITED_API", "0x030b0000")] if STABLE else [],
            extra_compile_args=["-std=gnu11", "-O3", "-pthread", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
            py_limited_api=STABLE,
            optional=True,  # `twin.py` does the same in NumPy
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
