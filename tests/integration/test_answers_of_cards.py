# SPDX-License-Identifier: Apache-2.0
"""Cards whose management library answers oddly, as some cards' does: the daemon shares the others.

The library stands before the simulated one, and answers for the first card as a file says.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, SIMULATOR, Site, simulate, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.test_start import free_port

SOURCE = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int answers(const char *oddly)
{
    char line[99] = "";
    FILE *file = fopen(getenv("ODDITY"), "r");
    if (file != NULL) {
        if (fgets(line, sizeof line, file) == NULL)
            *line = '\0';
        fclose(file);
    }
    return strcmp(line, oddly) == 0;
}

static void *next(const char *name)
{
    return dlsym(dlopen("libnvidia-mX.so.1", RTLD_NOW), name);
}

static int is_first(void *device)
{
    unsigned index = 0;
    int (*ask)(void *, unsigned *) = next("nvmlDeviceGetIndex");
    return ask(device, &index) == 0 && index == 0;
}

int nvmlDeviceGetMemoryInfo(void *device, void *memory)
{
    if (is_first(device) && answers("no memory"))
        return 3;
    if (is_first(device) && answers("unknown"))
        return 999;
    return ((int (*)(void *, void *))next(__func__))(device, memory);
}

int nvmlDeviceGetName(void *device, char *name, unsigned room)
{
    if (is_first(device) && answers("name")) {
        strcpy(name, "Card \xf8\n");
        return 0;
    }
    return ((int (*)(void *, char *, unsigned))next(__func__))(device, name, room);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *room, void *list)
{
    if (is_first(device) && answers("no processes"))
        return 13;
    return ((int (*)(void *, unsigned *, void *))next(__func__))(device, room, list);
}
"""


@pytest.fixture
def odd(site: Site, tmp_path: Path) -> Callable[[str], None]:
    """Has the first card answer oddly from now on."""
    folder = tmp_path / "library"
    folder.mkdir()
    image = (SIMULATOR / "libnvidia-ml.so.1").read_bytes()
    other = folder / "libnvidia-mX.so.1"
    other.write_bytes(image.replace(b"libnvidia-ml.so.1", b"libnvidia-mX.so.1"))
    (folder / "odd.c").write_text(SOURCE)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "odd.c",
         "-Wl,--no-as-needed", other, "-ldl"], check=True)
    site.environment = site.environment | {
        "LD_LIBRARY_PATH": f"{folder}:{SIMULATOR}", "ODDITY": str(folder / "oddity")}
    return lambda oddity: _put(folder / "oddity", oddity)


def _put(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize(("oddity", "said"), [
    ("no memory", "GPU 0 is left out: it has no memory of its own"),
    ("unknown", "GPU 0 is left out: "),
])
def test_card_that_cannot_be_shared_is_left_out_and_the_other_is_shared(
    site: Site, odd: Callable[[str], None], oddity: str, said: str
) -> None:
    odd(oddity)
    site.start()
    assert said in site.log.read_text()
    site.hook(1).hello()


@pytest.mark.parametrize(("oddity", "said"), [
    ("name", "manages gpu0 (Card \N{REPLACEMENT CHARACTER}?), gpu1"), ("no processes", "gpu0 ("),
])
def test_card_with_a_garbled_name_or_no_process_list_is_shared(
    site: Site, odd: Callable[[str], None], oddity: str, said: str
) -> None:
    odd(oddity)
    site.start(PYTHONIOENCODING="utf-8")
    assert said in site.log.read_text()
    site.hook(0).hello()
    site.hook(1).hello()


def test_metrics_omit_a_card_while_its_nvml_queries_fail(
    site: Site, odd: Callable[[str], None]
) -> None:
    odd("")
    port = free_port()
    daemon = site.start("--metrics", f"127.0.0.1:{port}")
    site.hook(0).hello()

    def used() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if line.startswith("nvshare_gpu_memory_used_bytes{")]

    wait_until(lambda: len(used()) == 2)
    odd("unknown")
    wait_until(lambda: len(used()) == 1)
    odd("")
    wait_until(lambda: len(used()) == 2)
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait() == 0


WATCHES = '''
import sys
from nvshared.machine import nvml as module
module.FAULT_PAUSE = 0
nvml = module.NVML()
uuids = [facts.uuid for facts in nvml.find()]
library, failures = nvml._nvml, [nvml._nvml.NVML_ERROR_GPU_IS_LOST]
wait = library.nvmlEventSetWait_v2
def lost_once(*given):
    if failures:
        raise library.NVMLError(failures.pop())
    return wait(*given)
library.nvmlEventSetWait_v2 = lost_once
def tell(uuid, words):
    print(uuids.index(uuid), words, flush=True)
    raise SystemExit
nvml.watch_faults(uuids, tell)
'''


def test_xid_of_a_card_is_reported_after_another_card_was_lost(tmp_path: Path) -> None:
    environment, _ = simulate(tmp_path)
    (tmp_path / "xid").write_text("1 79")
    done = subprocess.run(
        [sys.executable, "-c", WATCHES], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE, check=True)
    assert done.stdout == "1 Xid 79\n", done.stderr
