# SPDX-License-Identifier: Apache-2.0
"""Programs without CUDA that use a sanitizer or musl run as without the library."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook.conftest import LIBRARY

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *started(void *argument) { return argument; }

int main(int given, char **text)
{
    int (*line)(const char *) = dlsym(RTLD_DEFAULT, "puts");
    int (*next)(const char *) = dlsym(RTLD_NEXT, "puts");
    if (line == NULL || next == NULL || dlsym(RTLD_DEFAULT, "cuInit_of_nobody") != NULL)
        return 2;
    pthread_t thread;
    if (pthread_create(&thread, NULL, started, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    pid_t child = fork();
    if (child == 0)
        _exit(7);
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        return 4;
    char *bytes = malloc(10);
    bytes[given > 1 ? atoi(text[1]) : 0] = 1;
    free(bytes);
    line("runs");
    return 0;
}
"""


def compiled(folder: Path, *command: str) -> Path:
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    subprocess.run([*command, "-O0", "-g", str(source), "-o", str(program)], check=True)
    return program


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], env={**os.environ, "LD_PRELOAD": str(LIBRARY)},
        capture_output=True, text=True, check=False)


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined", "leak"])
def test_program_built_with_a_sanitizer_runs_with_the_library_preloaded(
    tmp_path: Path, sanitizer: str
) -> None:
    done = run(compiled(tmp_path, "gcc", f"-fsanitize={sanitizer}", "-pthread"))
    assert (done.returncode, done.stdout) == (0, "runs\n"), done.stderr


def test_address_sanitizer_finds_faults_of_a_program_with_the_library_preloaded(
    tmp_path: Path
) -> None:
    done = run(compiled(tmp_path, "gcc", "-fsanitize=address", "-pthread"), "10")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


def test_program_linked_with_musl_runs_with_the_library_preloaded(tmp_path: Path) -> None:
    if not shutil.which("musl-gcc"):
        pytest.skip("there is no musl-gcc on this machine; Debian has it in musl-tools")
    done = run(compiled(tmp_path, "musl-gcc"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")
