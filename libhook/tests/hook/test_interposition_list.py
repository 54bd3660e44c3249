# SPDX-License-Identifier: Apache-2.0
"""Compares hooks.def with the compiled library, with its exports and with cuda.h."""

import os
import re
import subprocess
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from libhook.coverage import reason, reasons
from libhook.tests.hook import recorded_driver as recorded

SOURCE = Path(__file__).parents[2] / "src"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
# The library's and the simulated driver's files, without the simulated NVML.
COMPARED = sorted({*SOURCE.rglob("*.c"), *SOURCE.parent.glob("simulator/[!n]*/*.c")})

needs_cuda_h = pytest.mark.skipif(
    not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME to compare with it")


def output(*command: object) -> str:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True).stdout


def test_library_exports_only_wrappers_jumps_and_functions_for_python(library: Path) -> None:
    exported = [
        line.split()[-1]
        for line in output("nm", "-D", "--defined-only", library).split("\n")
        if line
    ]
    assert sorted(exported) == sorted([
        *recorded.hooks(), *recorded.others(), "dlsym", "dlvsym", "longjmp", "siglongjmp",
        "__longjmp_chk", "nvshare_trim_wait", "nvshare_release", "__asan_default_options",
    ])


def test_library_when_loaded_runs_a_single_constructor(library: Path) -> None:
    """Besides the constructor that the compiler adds to each shared object: note_start() of log.c,
    which reads the initial stderr and processors, and changes nothing."""
    sections = output("readelf", "-SW", library)
    init_array = re.search(r"\.init_array\s+INIT_ARRAY\s+\w+\s+\w+\s+(\w+)", sections)
    assert init_array is not None
    assert int(init_array[1], 16) == 16
    symbols = output("nm", library)
    assert "frame_dummy" in symbols
    assert "note_start" in symbols
    assert ".ctors" not in sections
    assert ".preinit_array" not in sections


def test_library_links_against_the_c_library_alone(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", library))
    assert {name.split(".so")[0] for name in needed} <= {
        "libc", "ld-linux-x86-64", "ld-linux-aarch64",
    }


def test_library_starts_with_glibc_2_17(library: Path) -> None:
    """Functions that are only in libpthread or libdl before glibc 2.34 are weak, so that programs
    without these libraries start, too."""
    newest_allowed = (2, 17)
    undefined = output("objdump", "-T", library).splitlines()
    for line in undefined:
        for version in re.findall(r"GLIBC_([\d.]+)", line):
            assert tuple(map(int, version.split("."))) <= newest_allowed, line
    for name in ("dlopen", "dlinfo", "dlerror", "pthread_create", "pthread_once", "pthread_detach"):
        (line,) = (line for line in undefined if re.search(rf"\) {name}$", line))
        assert re.match(r"\w+ +w ", line), f"{name} must be there for any program to start"


def test_every_hooked_function_is_an_entry_point_of_the_recorded_driver() -> None:
    assert set(recorded.hooks()) <= set(recorded.entries())


def test_every_version_of_a_hooked_function_is_hooked_or_listed_in_unhooked_def() -> None:
    bases = {re.sub(r"(_v\d+)?(_pts[z]|_ptds)?$", "", hook) for hook in recorded.hooks()}
    for entry in recorded.entries():
        if re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", entry) in bases:
            assert entry in recorded.hooks() or reason(entry), f"{entry} has neither"


@needs_cuda_h
@pytest.mark.parametrize("file", COMPARED, ids=lambda path: path.name)
def test_source_file_compiles_with_the_declarations_of_nvidias_cuda_h(file: Path) -> None:
    """cuda.h replaces cuda_types.h: a prototype that differs does not compile."""
    flags = ["-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-deprecated-declarations"]
    include = ["-DNVSHARE_CHECK_CUDA_H", f"-I{CUDA}", f"-I{file.parents[1]}",
               f"-I{SOURCE.parent / 'include'}"]
    subprocess.run(["gcc", *flags, *include, str(file)], check=True)


@cache
def declared() -> dict[str, str]:
    """Every function that cuda.h declares, with its parameters."""
    text = subprocess.run(
        ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", f"-I{CUDA}", "-x", "c", "-"],
        input="#include <cuda.h>\n", capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"\bCUresult\s+(cu\w+)\s*\(([^;]*)\)", text))


# A function with such a parameter or name may submit, allocate, free or describe memory.
TYPES = re.compile(
    r"\b(CUstream|CUdeviceptr\w*|CUmemGenericAllocationHandle|CUmemoryPool|CUarray|CUgraphExec"
    r"|CUmipmappedArray|CUexternalMemory|CUtexref|CUsurfref|CUDA_RESOURCE_DESC|CUtensorMap)\b")
NAMES = re.compile(
    r"cu(Mem|Launch|Param|Array|Mipmapped|Multicast|Pointer|Ipc|Import|External|Green|Checkpoint"
    r"|Module(Load|Unload|GetGlobal|GetFunction$)|Library(Load|Unload|GetModule)"
    r"|Kernel(GetFunction|[GS]etAttribute)|Func(Load|[GS]etAttribute)|OccupancyMaxActiveBlocks"
    r"|Ctx(Create|Destroy|Attach|Detach|SetLimit|FromGreen|PushCurrent|SetCurrent|EnablePeer"
    r"|DisablePeer)|DevicePrimaryCtx|DeviceTotalMem|Device\w*Mem|Graph\w*(Mem|Instantiate|Update)"
    r"|Get(ProcAddress|ExportTable)|Init$)")


@needs_cuda_h
def test_functions_that_submit_allocate_free_or_query_are_hooked_or_in_unhooked_def() -> None:
    suspects = {
        name for name, types in declared().items() if TYPES.search(types) or NAMES.match(name)
    }
    assert len(suspects) > 400
    assert suspects >= (set(recorded.hooks()) & declared().keys()) - {
        name for name, types in declared().items() if "CUgraph" in types or "CUdevice" in types
    }
    missing = sorted(n for n in suspects if n not in recorded.hooks() and reason(n) is None)
    assert missing == []


@needs_cuda_h
def test_every_pattern_of_unhooked_def_matches_functions_of_cuda_h_and_no_hook() -> None:
    for pattern in reasons():
        functions = {*declared(), *recorded.entries()}
        fitting = {name for name in functions if fnmatchcase(name, pattern)}
        assert fitting, f"{pattern} in unhooked.def fits no function of cuda.h"
        assert not fitting & set(recorded.hooks()), f"{pattern} in unhooked.def fits a hook"
