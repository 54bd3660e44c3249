# SPDX-License-Identifier: Apache-2.0
"""Compiles files of the library with simulated replacements (doubles) of the functions that they
call, to a library that a test loads.

Functions that no test calls may be missing: symbols are bound lazily.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
# SEEN marks the functions and variables that a test uses.
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
         f"-I{SOURCE}", f"-I{SOURCE.parent}/include", "-pthread",
         '-DSEEN=__attribute__((visibility("default")))']
LIBRARY = ["-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,lazy"]


def compile_double(name: str, sources: list[str], target: Path, flags: list[str]) -> Path:
    """Compiles `sources` of the library with NAME/NAME_double.c, and returns `target`."""
    files = [HERE / name / f"{name}_double.c", HERE / "doubles.c", *(SOURCE / s for s in sources)]
    subprocess.run(["gcc", *FLAGS, *flags, *files, "-o", target], check=True)
    return target


def built_double(name: str, sources: list[str]) -> Any:
    """A fixture of a module: the library that compile_double() makes."""
    @pytest.fixture(scope="module")
    def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return compile_double(name, sources, tmp_path_factory.mktemp(name) / f"{name}.so", LIBRARY)

    return built


def counting_double(name: str, sources: list[str], folder: Path) -> Path:
    """As compile_double(), with the variable `steps`, which counts the library's steps."""
    steps = folder / "steps.o"
    subprocess.run(["gcc", *FLAGS, "-fPIC", "-c", HERE / "steps.c", "-o", steps], check=True)
    return compile_double(name, sources, folder / f"{name}.so",
                          [*LIBRARY, "-fsanitize-coverage=trace-pc", str(steps)])


class Double:
    """A new copy of a library, in which static variables have their initial values.

    Its functions are methods that take integers. `results`: the types of results that are no int.
    """

    def __init__(self, library: Path, folder: Path, **results: Any) -> None:
        copy = folder / f"{library.stem}-{len(list(folder.iterdir()))}.so"
        copy.write_bytes(library.read_bytes())
        self._library = ctypes.CDLL(str(copy), mode=os.RTLD_LAZY)
        for name, kind in results.items():
            getattr(self._library, name).restype = kind

    def call(self, name: str, *arguments: int) -> Any:
        return getattr(self._library, name)(*map(ctypes.c_uint64, arguments))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self.call(name, *arguments)

    def variable(self, name: str, kind: Any = ctypes.c_uint) -> Any:
        return kind.in_dll(self._library, name)
