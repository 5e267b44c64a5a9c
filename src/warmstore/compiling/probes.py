"""Finds the parts of this process's `Environment`, without importing a framework. Slow answers are cached in files."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

from warmstore.compiling.environment import UNKNOWN_COMPUTE, Environment
from warmstore.storage.atomic import replace_file
from warmstore.storage.boot import boot_id
from warmstore.storage.files import PLAIN, read_whole

# Extensions of x86-64 and ARM that compilers use with -march=native. Other flags in /proc/cpuinfo depend on the kernel
# and the hypervisor, and do not matter to compiled code.
_ISA = {
    "ssse3", "pni", "fma", "fma4", "f16c", "bmi1", "bmi2", "abm", "lzcnt", "popcnt", "movbe", "aes", "vaes",
    "pclmulqdq", "vpclmulqdq", "gfni", "adx", "rdrnd", "rdrand", "rdseed", "cx16", "fsgsbase", "clwb", "clflushopt",
    "clzero", "rdpid", "serialize", "movdiri", "movdir64b", "tbm", "xop", "lwp", "prefetchwt1", "3dnowprefetch",
    "neon", "crc32", "atomics", "fp", "fphp", "i8mm", "bf16", "dotprod", "fcma", "jscvt",
}  # fmt: skip
_UNKNOWN_GPU = ("", "unknown", UNKNOWN_COMPUTE)  # UUID, model, compute capability
_ISA_FAMILIES = ("sse", "avx", "amx_", "sha", "xsave", "asimd", "sve", "sme_", "sme2", "lrcpc")


@cache
def probe() -> Environment:
    """The environment of this process. The first call takes some milliseconds."""
    torch = _torch()
    isa = _isa()
    gpus, compute = _gpus()
    return Environment(
        system=platform.system(),
        machine=platform.machine(),
        glibc=_glibc(),
        python=f"{sys.implementation.name}-{platform.python_version()}",
        abi=EXTENSION_SUFFIXES[0].split(".")[1],
        torch=torch.get("__version__"),
        torch_git=torch.get("git_version"),
        torch_path=torch.get("path"),
        triton=_version("triton"),
        cuda=torch.get("cuda") or torch.get("hip"),
        jax=_version("jax"),
        jaxlib=_version("jaxlib"),
        gpus=gpus,
        compute=compute,
        driver=_driver(),
        isa=isa,
        capability=_capability(isa),
        compiler=_compiler(),
        threads=_threads(),
    )


def _glibc() -> str | None:
    with suppress(AttributeError, ValueError, OSError):
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ") or None
    return None


def _package(name: str) -> Path | None:
    """The folder of a package, found without importing it."""
    found = PathFinder.find_spec(name)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def _torch() -> dict[str, str]:
    """The variables in torch's version file, and the path of torch."""
    folder = _package("torch")
    if folder is None:
        return {}
    found = {"path": str(folder)}
    with suppress(OSError):
        text = read_whole(PLAIN, folder / "version.py").decode()
        found |= re.findall(r"^(\w+)(?: *:[^=\n]*)? *= *'([^']*)'", text, re.MULTILINE)
    return found


def _version(name: str) -> str | None:
    """The version of a package, from the name of its .dist-info folder, else from its own code."""
    folder = _package(name)
    if folder is None:
        return None
    for info in folder.parent.glob(f"{name}-*.dist-info"):
        return info.name.removeprefix(f"{name}-").removesuffix(".dist-info")
    text = ""  # a distribution of another name, or a checkout
    for file in ("__init__.py", "version.py"):
        with suppress(OSError):
            text += read_whole(PLAIN, folder / file).decode(errors="replace")
    if match := re.search(r"""^_{0,2}version(?:__)? *= *["']([^"']+)["']""", text, re.MULTILINE):
        return match[1]
    return f"unknown {hashlib.sha256(text.encode()).hexdigest()[:8]}"


@cache
def _flags() -> frozenset[str]:
    with suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        text = file.read(1 << 14).decode(errors="replace")  # the first processor; 256 of them take megabytes
        if match := re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE):
            return frozenset(match[1].split())
    with suppress(OSError, subprocess.SubprocessError):  # macOS
        printed = _output(["sysctl", "-n", "hw.optional"])
        return frozenset(re.findall(r"hw\.optional\.(?:arm\.)?(\w+): 1", printed))
    return frozenset()


def _isa() -> tuple[str, ...]:
    flags = _flags()
    if platform.system() == "Darwin":
        return tuple(sorted(flags))
    return tuple(sorted(flag for flag in flags if flag in _ISA or flag.startswith(_ISA_FAMILIES)))


def _capability(isa: tuple[str, ...]) -> str:
    """The vector level of torch's kernels: `at::get_cpu_capability` in ATen/native/DispatchStub.cpp."""
    forced = os.environ.get("ATEN_CPU_CAPABILITY")
    if forced in ("avx512", "avx2", "default", "vsx", "zvector", "sve", "sve128", "sve256"):
        return forced
    extensions = set(isa)
    if extensions >= {"avx512vl", "avx512bw", "avx512dq", "fma"}:
        return "avx512"
    if extensions >= {"avx2", "fma"}:
        return "avx2"
    return f"sve{_sve_bits() or ''}" if "sve" in extensions else "default"


def _sve_bits() -> int:
    """The width of the SVE vectors of this process; 0 if it is unknown."""
    with suppress(OSError, AttributeError):
        length: int = ctypes.CDLL(None).prctl(51, 0, 0, 0, 0)  # PR_SVE_GET_VL: bytes in the lower 16 bits
        return max(length, 0) % (1 << 16) * 8
    return 0


def _threads() -> int:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = os.environ.get(name, "").split(",")[0].strip()
        if threads.isdecimal() and int(threads):
            return int(threads)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compiler() -> str | None:
    """The first line that the C++ compiler prints for --version."""
    command = shlex.split(os.environ.get("CXX", ""))
    found = next(filter(None, map(shutil.which, command[-1:] or ("g++", "clang++", "c++"))), None)
    if found is None:
        return None
    real = Path(found).resolve()
    state = real.stat()

    def version() -> str | None:
        with suppress(OSError, subprocess.SubprocessError):
            lines = _output([str(real), "--version"]).strip().splitlines()
            return lines[0].strip() if lines else None
        return None

    return _remembered(("compiler", str(real), str(state.st_size), str(state.st_mtime_ns)), version)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout


def _driver() -> str | None:
    with suppress(OSError):
        if match := re.search(r"(\d+\.\d+(?:\.\d+)?)", Path("/proc/driver/nvidia/version").read_text()):
            return match[1]
    return None


def _gpus() -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Models and compute capabilities of the GPUs that are visible to CUDA, from the NVIDIA management library. Those
    that this library does not tell are unknown."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
        return (), ()
    driver = _driver()
    has_driver = driver is not None or Path("/dev/nvidiactl").exists()
    if not has_driver and not Path("/dev/dxg").exists():  # the GPU of Windows, in WSL
        return (), ()
    devices = sorted(path.name for path in Path("/proc/driver/nvidia/gpus").glob("*"))
    listed = _remembered(("devices", boot_id().decode(), driver or "", *devices), _ask_nvml)
    if listed is None:
        return ((_UNKNOWN_GPU[1],), (_UNKNOWN_GPU[2],)) if has_driver else ((), ())
    found = [(uuid, name, (int(major), int(minor))) for uuid, name, major, minor in json.loads(listed)]
    if visible is not None:
        chosen = []
        for part in (part.strip() for part in visible.split(",")):
            match = [gpu for at, gpu in enumerate(found) if part == str(at) or (part and gpu[0].startswith(part))]
            if part.startswith("MIG-"):
                match = [_UNKNOWN_GPU]
            if not match:
                break  # CUDA ignores everything after an unknown name
            chosen += match[:1]
        found = chosen
    return tuple(name for _, name, _ in found), tuple(compute for _, _, compute in found)


def _ask_nvml() -> str | None:
    """UUID, model and compute capability of every GPU, in the order of the PCI bus, as JSON. None if a call fails."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    found = []
    try:
        count = ctypes.c_uint()
        failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for at in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            uuid, name = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
            failed = (
                failed
                or nvml.nvmlDeviceGetHandleByIndex_v2(at, ctypes.byref(device))
                or nvml.nvmlDeviceGetUUID(device, uuid, 96)
                or nvml.nvmlDeviceGetName(device, name, 96)
                or nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
            )
            found.append((uuid.value.decode(), name.value.decode(), major.value, minor.value))
    finally:
        nvml.nvmlShutdown()
    return None if failed else json.dumps(found)


def _remembered(question: tuple[str, ...], ask: Callable[[], str | None]) -> str | None:
    """The answer to a slow question, cached in a file below the temporary folder. None is not cached: a failure may be
    that of this process."""
    name = hashlib.sha256("\0".join(question).encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"warmstore-{os.getuid()}"
    path = folder / name
    with suppress(OSError, ValueError):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022:
            return str(json.loads(read_whole(PLAIN, path)))
    answer = ask()
    if answer is None:
        return None
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            replace_file(path, json.dumps(answer).encode(), durable=False)
    return answer
