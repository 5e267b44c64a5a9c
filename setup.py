"""What pyproject.toml cannot say: the native floor, built where there is a C compiler, and the package page."""

import re
import sysconfig
import tomllib
from pathlib import Path

import pyarrow
from setuptools import Extension, setup

FOLDER = Path("src/warmstore/_native")
# The stable ABI: one wheel for all versions of Python from 3.11 on. Python without the GIL has none.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
_LINK = re.compile(r'(\]\(|(?:href|src|srcset)=")(?![a-z]+:)([^)"\s]+)')
_PICTURES = (".gif", ".jpg", ".jpeg", ".png", ".svg", ".webp")


def package_page() -> str:
    """README.md with absolute links: the package page has no files beside it."""
    home = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Source"]

    def absolute(match: re.Match[str]) -> str:
        before, target = match.groups()
        if target.startswith("#"):
            return f"{before}{home}{target}"
        kind = "raw" if target.partition("#")[0].endswith(_PICTURES) else "blob"
        return f"{before}{home}/{kind}/main/{target.removeprefix('./')}"

    parts = re.split(r"(^```.*?^```)", Path("README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(absolute, part) for part in parts)


setup(
    long_description=package_page(),
    long_description_content_type="text/markdown",
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
