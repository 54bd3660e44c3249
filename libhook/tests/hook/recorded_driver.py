# SPDX-License-Identifier: Apache-2.0
"""Generates a libcuda.so.1 with entry points that only note calls and arguments.

It exports all entry points of `entry_points.txt`, which was recorded on a card, and of later
versions of CUDA (`entry_points_newer.txt`). Each entry point returns a different number as its
CUresult, so that a test can tell which of the driver's 700 functions a call reached.
cuGetProcAddress answers as recorded. For each entry point NAME the library has the variables
calls_of_NAME, arguments_of_NAME[12] (of the last call) and result_of_NAME, which a test may change.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RECORDED = Path(__file__).with_name("entry_points.txt")
FILES = (RECORDED, RECORDED.with_name("entry_points_newer.txt"))
LEGACY, PER_THREAD = 1, 2
ADDED = 9998                         # result of an entry point that no driver has


@dataclass(frozen=True, slots=True)
class Answer:
    """From CUDA `version` on, `symbol` asked for with `flags` is the exported `entry`."""

    symbol: str
    flags: int
    version: int
    entry: str


def lines(files: tuple[Path, ...] = FILES) -> list[str]:
    """The lines of the recorded files without comments."""
    return [line for file in files for line in file.read_text().splitlines() if line[0] != "#"]


@cache
def recorded(*files: Path) -> tuple[Answer, ...]:
    """All answers of the recorded driver, versions ascending for each symbol and flag."""
    answers = []
    for line in lines(files or FILES):
        symbol, rest = line.split(" ", 1)
        legacy, per_thread = rest.removeprefix("legacy").split("per-thread")
        for flags, words in ((LEGACY, legacy), (PER_THREAD, per_thread)):
            for word in words.split():
                version, entry = word.split(":")
                answers.append(Answer(symbol, flags, int(version), entry))
    return tuple(answers)


LATEST = max(answer.version for answer in recorded())   # of CUDA


@cache
def entries() -> tuple[str, ...]:
    """All exported names of the recorded driver except interfaces of debuggers and graphics."""
    names = {line.split()[0] for line in lines()}
    return tuple(sorted(names | {answer.entry for answer in recorded()}))


@cache
def results() -> dict[str, int]:
    return {entry: number for number, entry in enumerate(entries(), 10_000)}


def result_of(entry: str) -> int:
    return results()[entry]


NONE: frozenset[str] = frozenset()

ENTRY = """
#include <stdint.h>
#include <string.h>
static void note(const uint64_t *passed, uint64_t *arguments)
{
    for (int n = 0; n < 12; n++)
        arguments[n] = passed[n];    /* no memcpy(), of which ThreadSanitizer reports races */
}
#define ENTRY(name, result)                                                                  \\
    unsigned calls_of_##name;                                                                \\
    int result_of_##name = result;                                                           \\
    uint64_t arguments_of_##name[12];                                                        \\
    int name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,         \\
             uint64_t g, uint64_t h, uint64_t i, uint64_t j, uint64_t k, uint64_t l)         \\
    {                                                                                        \\
        calls_of_##name++;                                                                   \\
        note((uint64_t[]){ a, b, c, d, e, f, g, h, i, j, k, l }, arguments_of_##name);       \\
        return result_of_##name;                                                             \\
    }
"""


def source(left_out: frozenset[str], newer: frozenset[str], added: frozenset[str]) -> str:
    """The driver's source in C. `left_out`: entry points that an older driver lacks. `newer`:
    symbols for which cuGetProcAddress returns, from the latest version on, an entry point that
    the driver does not export. `added`: additional entry points, which return ADDED."""
    lines = [ENTRY]
    lines += [f"ENTRY({name}, {ADDED})" for name in sorted(added)]
    here = dict.fromkeys(entry for entry in entries() if entry not in left_out)
    for entry in here:
        if not entry.startswith("cuGetProcAddress"):
            lines.append(f"ENTRY({entry}, {result_of(entry)})")
    lines.append("static int newest(void) { return 9999; }")
    lines.append(
        "int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);\n"
        "int cuGetProcAddress(const char *symbol, void **entry, int version, uint64_t flags)\n"
        "{ return cuGetProcAddress_v2(symbol, entry, version, flags, 0); }\n"
        "static const struct { const char *symbol; int flags, version; void *entry; } answers[] = {"
    )
    answers = [
        (answer.symbol, answer.flags, answer.version,
         "newest" if answer.symbol in newer and answer.version > 12000 else answer.entry)
        for answer in recorded() if answer.entry in here]
    latest = dict(zip(added, added, strict=True)) | dict.fromkeys(newer, "newest")
    answers += [(symbol, flags, LATEST, entry) for symbol, entry in sorted(latest.items())
                for flags in (LEGACY, PER_THREAD)]
    lines += [f'    {{ "{symbol}", {flags}, {version}, (void *){entry} }},'
              for symbol, flags, version, entry in answers]
    lines.append(f"""}};
int cuGetProcAddress_v2(const char *symbol, void **entry, int version, uint64_t flags, int *status)
{{
    int found = 1;
    if (symbol == 0 || entry == 0)
        return 1;
    *entry = 0;
    if (flags == 0)
        flags = {LEGACY};
    for (unsigned i = 0; i < sizeof answers / sizeof *answers; i++)
        if (strcmp(answers[i].symbol, symbol) == 0 && (int)flags == answers[i].flags) {{
            found = 2;
            if (version >= answers[i].version && version <= {LATEST})
                *entry = answers[i].entry;
        }}
    if (status != 0)
        *status = *entry != 0 ? 0 : found;
    return 0;
}}""")
    return "\n".join(lines) + "\n"


def build(
    directory: Path,
    left_out: frozenset[str] = NONE,
    newer: frozenset[str] = NONE,
    added: frozenset[str] = NONE,
    compiler: str = "gcc",
) -> Path:
    """Compiles the driver to `directory`/libcuda.so.1, with a link libcuda.so; returns `directory`.
    """
    command = [compiler, "-x", "c", "-", "-shared", "-fPIC", "-O0", "-Wl,-soname,libcuda.so.1"]
    command += ["-Wl,-Bsymbolic", "-o", str(directory / "libcuda.so.1")]
    subprocess.run(command, input=source(left_out, newer, added), text=True, check=True)
    (directory / "libcuda.so").symlink_to("libcuda.so.1")
    return directory


HOOKS = Path(__file__).parents[2] / "src" / "driver" / "hooks.def"
WIDTHS = {
    "unsigned char": 8, "unsigned short": 16, "unsigned int": 32, "int": 32, "CUdevice": 32,
    "CUdeviceptr_v1": 32, "cuuint32_t": 32, "CUlogicalEndpointId": 32, "CUfunction_attribute": 32,
    "CUlimit": 32, "CUmem_advise": 32, "CUmem_range_attribute": 32, "CUpointer_attribute": 32,
    "CUmemAllocationHandleType": 32, "CUmemRangeHandleType": 32, "CUstreamCaptureMode": 32,
    "CUmemPool_attribute": 32,
}

# types passed by value and larger than a register: such arguments are not compared
BY_VALUE = {"CUipcMemHandle"}


@cache
def hooks(part: str = "") -> dict[str, list[int]]:
    """The hooks of hooks.def, or of `part` of its text: each name and variant, with the width of
    each parameter in bits."""
    text = re.sub(r"/\*.*?\*/", "", part or HOOKS.read_text(), flags=re.DOTALL)
    found: dict[str, list[int]] = {}
    for variant, name, types in re.findall(
        r"^[A-Z_]+?(_PTSZ|_PTDS)?\((\w+),.*?\(([^()]*)\)\)$",
        text, flags=re.MULTILINE | re.DOTALL):
        parts = [" ".join(part.split()) for part in types.split(",")]
        widths = [WIDTHS.get(part, 64) for part in parts if part not in BY_VALUE]
        for suffix in dict.fromkeys(("", variant.lower())):
            assert name + suffix not in found, f"{name + suffix} is listed twice in hooks.def"
            found[name + suffix] = widths
    return found


def others() -> list[str]:
    """The functions of other libraries that have wrappers."""
    text = HOOKS.with_name("others.def").read_text()
    return re.findall(r"^OTHER\((\w+)\)", text, flags=re.MULTILINE)


def environment(library: Path, driver: Path, *preloads: Path) -> dict[str, str]:
    """Variables of a program that finds `driver`, with `preloads` and `library` preloaded."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVSHARE_")}
    return kept | {
        "LD_PRELOAD": ":".join(map(str, (*preloads, library))),
        "LD_LIBRARY_PATH": str(driver),
        "NVSHARE_SOCKET": str(driver / "no-daemon-here"),
    }
