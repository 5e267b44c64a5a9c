"""The libraries of this process that run threads of their own, and the numbers of threads that they use.

The number of OpenMP belongs to a thread, and so does one of MKL. Those of OpenBLAS and BLIS belong to the process.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from threadpoolctl import ThreadpoolController


class NativeLibrary:
    """The number of threads of one library, for the calling thread or for the process.

    get: returns the number. set: takes it.
    """

    def __init__(self, get: Callable[[], int], set: Callable[[int], object]) -> None:
        self.get = get
        self.set = set


class NativeLibraries:
    """The libraries that are loaded, by file.

    of_thread: those with a number for each thread. of_process: the others.
    """

    def __init__(self) -> None:
        self.of_thread: dict[str, NativeLibrary] = {}
        self.of_process: dict[str, NativeLibrary] = {}
        self._known = set[str]()
        self._modules = 0

    @property
    def is_current(self) -> bool:
        """Whether no module was imported since `look`: an import may load libraries."""
        return self._modules == len(sys.modules)

    def look(self) -> set[int]:
        """Find libraries that were loaded since the last call. It takes some milliseconds.

        Returns:
            The numbers of threads that the new ones use.
        """
        modules, counts = len(sys.modules), set[int]()
        for library in ThreadpoolController().lib_controllers:
            if library.filepath not in self._known:
                counts.add(library.num_threads)
                self._add(library)
        torch = sys.modules.get("torch._C")
        if torch is not None and torch.__file__ is not None and torch.__file__ not in self._known:
            counts.add(torch.get_num_threads())
            # Builds for x86 contain MKL, whose number for the process `torch.set_num_threads` sets.
            mkl = _local_mkl(ctypes.CDLL(torch.__file__))
            if mkl is not None:
                self.of_thread[torch.__file__] = mkl
            self._known.add(torch.__file__)
        self._modules = modules
        return counts

    def _add(self, library: Any) -> None:
        file, mkl = library.filepath, _local_mkl(library.dynlib)
        if mkl is not None:
            self.of_thread[file] = mkl
        elif library.internal_api != "openblas":
            numbers = self.of_thread if library.user_api == "openmp" else self.of_process
            numbers[file] = NativeLibrary(library.get_num_threads, library.set_num_threads)
        elif library.threading_layer != "openmp":  # else it follows OpenMP
            self.of_process[file] = _openblas(library)
        self._known.add(file)

    @staticmethod
    def begin_thread() -> None:
        """Have PyTorch set the number of this thread now. It does so once in each, before its first operation."""
        torch = sys.modules.get("torch._C")
        if torch is not None:
            torch.get_num_threads()


def _local_mkl(library: ctypes.CDLL | None) -> NativeLibrary | None:
    """MKL's number of the calling thread, where 0 is that of the process; None if the library has no MKL."""
    set_local = getattr(library, "MKL_Set_Num_Threads_Local", None)
    if set_local is None:
        return None

    def get() -> int:
        count: int = set_local(0)
        set_local(count)
        return count

    return NativeLibrary(get, set_local)


def _openblas(library: Any) -> NativeLibrary:
    """The functions of OpenBLAS itself: threadpoolctl's change nothing in a thread while another one has a limit."""
    name = next(name for name in library.check_symbols if hasattr(library.dynlib, name))
    return NativeLibrary(getattr(library.dynlib, name), getattr(library.dynlib, name.replace("_get_", "_set_")))
