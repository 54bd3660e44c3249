# SPDX-License-Identifier: Apache-2.0
"""Compiles small C programs and runs them with the preloaded library."""

import subprocess
from pathlib import Path

from libhook.tests.hook import recorded_driver as recorded

HEADER = f"#define LATEST {recorded.LATEST}\n" + """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *owner(void *address)
{
    Dl_info info;
    if (address == NULL)
        return "nobody";
    return dladdr(address, &info) == 0 ? "unknown" : strrchr(info.dli_fname, '/') + 1;
}

static int call(void *entry)
{
    return entry == NULL ? -1 : ((int (*)(long, ...))entry)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

int cuLaunchKernel(long, ...);
"""


def compile_c(source: str, target: Path, *flags: object, compiler: str = "gcc") -> Path:
    """Compiles `source` after HEADER to a program or, with -shared, a library."""
    command = [compiler, "-x", "c", "-", "-x", "none", "-w", "-fPIC", "-o", str(target)]
    command += map(str, flags)
    subprocess.run(command, input=HEADER + source, text=True, check=True)
    return target


def run(program: Path, library: Path, driver: Path, *preloads: Path) -> list[str]:
    done = subprocess.run(
        [program], env=recorded.environment(library, driver, *preloads), capture_output=True,
        text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


LAUNCH = str(recorded.result_of("cuLaunchKernel"))
