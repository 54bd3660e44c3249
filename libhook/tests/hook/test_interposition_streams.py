# SPDX-License-Identifier: Apache-2.0
"""How streams are identified with drivers that give them no ids (before CUDA 12)."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
#include <assert.h>
#include <pthread.h>

#include "driver/real.h"
#include "flight/streams.h"

_Atomic(void *) real_functions[REAL_COUNT];
CUresult real_absent(void) { return CUDA_ERROR_NOT_FOUND; }
void *real_find(enum real_index index) { (void)index; return real_absent; }

static uint64_t own[3];
static void *thread(void *number)
{
    own[(intptr_t)number] = stream_name(CU_STREAM_PER_THREAD);
    assert(own[(intptr_t)number] == stream_name(CU_STREAM_PER_THREAD));
    return NULL;
}

int main(void)
{
    CUstream one = (CUstream)0x5500001000, two = (CUstream)0x5500002000;
    uint64_t name = stream_name(one), usual = stream_name(NULL);
    assert(name != 0 && name == stream_name(one) && name != stream_name(two));
    assert(usual != 0 && usual == stream_name(CU_STREAM_LEGACY));
    /* One after the other, with the same stack: threads are not known by that. */
    for (intptr_t i = 0; i < 3; i++) {
        pthread_t started;
        pthread_create(&started, NULL, thread, (void *)i);
        pthread_join(started, NULL);
    }
    thread(0);
    for (int i = 0; i < 3; i++)
        assert(own[i] != own[(i + 1) % 3] && own[i] != usual && own[i] != name);
    stream_ends();
    assert(stream_name(one) != name && stream_name(one) == stream_name(one));
    assert(stream_name(CU_STREAM_PER_THREAD) == own[0]);
    return 0;
}
"""


def test_stream_created_at_a_reused_handle_gets_a_new_identity(tmp_path: Path) -> None:
    program = tmp_path / "streams"
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{SOURCE}"]
    command += [f"-I{SOURCE.parent / 'include'}", "-x", "c", "-", "-x", "none"]
    sources = ("flight/streams.c", "gate/contexts.c", "driver/log.c",
               "driver/own_thread.c", "driver/setting.c")
    command += [*(str(SOURCE / source) for source in sources), "-o", str(program)]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    subprocess.run([program], check=True)
