# SPDX-License-Identifier: Apache-2.0
"""Functions of a driver newer than the library: functions that submit work get wrappers, which pass
all arguments."""

import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.programs import compile_c, run

SOURCE = Path(__file__).parents[2] / "src"

SUBMIT = [
    "cuMemcpyTomorrowAsync", "cuMemcpyTomorrow_ptds", "cuMemcpyHtoDAsync_v9", "cuMemsetD64_v2",
    "cuMemsetD64_v2_ptds", "cuLaunchKernelTomorrow", "cuLaunchKernel_v7_ptsz", "cuGraphLaunch_v2",
    "cuGraphExecLaunchMany", "cuGraphUpload_v2", "cuGraphAddNode_v12", "cuGraphInstantiate_v9",
    "cuGraphExecMemcpyNodeSetParams_v2", "cuMemPrefetchTomorrow", "cuMemDiscardTomorrow",
    "cuStreamWriteValue128", "cuStreamWaitValue128_v2", "cuStreamBatchMemOp_v4",
    "cuStreamAttachMemAsync_v2", "cuTomorrowAsync", "cuLaunchHostFunc_v9",
]
KEEP = [
    "cuStreamBeginCaptureTomorrow", "cuStreamBeginCapture_v9", "cuMulticastBindTomorrow",
    "cuMulticastBindMem_v9", "cuMemExportTomorrow", "cuMemExportToShareableHandle_v2",
    "cuMemGetHandleForAddressRange_v2",
]
OTHER = [
    "cuStreamSynchronize_v2", "cuStreamQuery_v2_ptsz", "cuStreamGetTomorrow", "cuEventRecord_v9",
    "cuDeviceGetTomorrow", "cuGraphMemcpyNodeGetParams_v9",
    "cuMulticastUnbind_v2", "cuCtxTomorrow",
]

KIND = """
#include <stdio.h>
#include <stdlib.h>
#include "driver/newer.h"
int main(int count, char **names)
{
    for (int i = 2; i < count; i++)
        printf("%d\\n", newer_kind(names[i], atoi(names[1])));
}
"""


def kinds(folder: Path, names: list[str], takes_stream: bool = False) -> dict[str, int]:
    program = folder / "kind"
    command = ["gcc", "-Wall", "-Werror", f"-I{SOURCE}", "-x", "c", "-", "-x", "none"]
    command += [str(SOURCE / "driver" / "newer.c"), "-o", str(program)]
    subprocess.run(command, input=KIND, text=True, check=True)
    asked = [str(program), str(int(takes_stream)), *names]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return dict(zip(names, map(int, done.stdout.split()), strict=True))


def test_unknown_driver_function_is_classified_by_its_name_and_stream_argument(
    tmp_path: Path
) -> None:
    expected = dict.fromkeys(SUBMIT, 1) | dict.fromkeys(KEEP, 2)
    expected |= dict.fromkeys([*OTHER, "cuTeleport"], 0)
    assert kinds(tmp_path, list(expected)) == expected
    expected = {"cuTeleport": 1, "cuStreamQuery_v2": 0}
    assert kinds(tmp_path, list(expected), takes_stream=True) == expected


def test_known_functions_without_a_hook_are_not_classified_as_submitting(tmp_path: Path) -> None:
    """Of the functions with hooks for the gate, all but one would be classified as submitting."""
    unhooked = [name for name in recorded.entries() if name not in recorded.hooks()]
    streams = {
        name for name in unhooked
        if name.endswith(("_ptsz", "_ptds")) or {f"{name}_ptsz", f"{name}_ptds"} & set(unhooked)
    }
    rest = sorted(set(unhooked) - streams)
    assert len(streams) > 30
    assert len(rest) > 200
    assert set(kinds(tmp_path, sorted(streams), takes_stream=True).values()) == {0}
    assert set(kinds(tmp_path, rest).values()) == {0}
    gated = [name for name in recorded.hooks() if name.startswith(("cuMemcpy", "cuMemset",
                                                                   "cuLaunch", "cuGraph"))]
    missed = {name for name, kind in kinds(tmp_path, gated).items() if kind != 1}
    assert missed == {"cuGraphExecChildGraphNodeSetParams"}


MANY = 200                           # more than NEWER_MAX


@pytest.fixture(scope="module")
def tomorrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver with additional functions, and with a version of a function that it does not export.
    """
    names = {"cuMemcpyTomorrowAsync", "cuTeleport", "cuTeleport_ptsz", "cuDeviceTomorrow"}
    names |= {f"cuMemcpyTomorrow{i}Async" for i in range(MANY)}
    folder = tmp_path_factory.mktemp("tomorrow")
    return recorded.build(folder, added=frozenset(names), newer=frozenset({"cuLaunchKernel"}))


ASK = """
int main(void)
{
    const char *names[] = { "cuMemcpyTomorrowAsync", "cuTeleport", "cuTeleport_ptsz",
                            "cuDeviceTomorrow" };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *launch = NULL;
    int (*ask)(const char *, void **, int, long, int *) = dlsym(driver, "cuGetProcAddress_v2");
    for (int i = 0; i < 4; i++) {
        void *found = dlsym(driver, names[i]), *asked = NULL;
        ask(names[i], &asked, LATEST, 0, NULL);
        printf("%s %s %d %s %d\\n", names[i], owner(found), call(found),
               found == asked ? "same" : "differ", dlerror() == NULL);
    }
    ask("cuLaunchKernel", &launch, LATEST, 0, NULL);
    printf("cuLaunchKernel %s %d\\n", owner(launch), call(launch));
    long (*copy)(long, ...) = dlsym(driver, names[0]);
    copy(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
    long *arrived = dlsym(driver, "arguments_of_cuMemcpyTomorrowAsync");
    for (int i = 0; i < 12; i++)
        printf("%ld ", arrived[i]);
}
"""


def test_unknown_submitting_function_is_wrapped_and_gets_all_arguments(
    library: Path, tomorrow: Path, tmp_path: Path
) -> None:
    assert run(compile_c(ASK, tmp_path / "program"), library, tomorrow) == [
        f"cuMemcpyTomorrowAsync libnvshare.so {recorded.ADDED} same 1",
        f"cuTeleport libnvshare.so {recorded.ADDED} same 1",
        f"cuTeleport_ptsz libnvshare.so {recorded.ADDED} same 1",
        f"cuDeviceTomorrow libnvshare.so {recorded.ADDED} same 1",
        "cuLaunchKernel libnvshare.so 9999",
        "1 2 3 4 5 6 7 8 9 10 11 12 ",
    ]


def test_unknown_functions_beyond_the_wrapper_slots_are_found_and_called_once(
    library: Path, tomorrow: Path, tmp_path: Path
) -> None:
    program = compile_c(f"""
        int main(void)
        {{
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            for (int i = 0; i < {MANY}; i++) {{
                char name[60];
                sprintf(name, "calls_of_cuMemcpyTomorrow%dAsync", i);
                void *first = dlsym(driver, name + 9), *second = dlsym(driver, name + 9);
                unsigned *calls = dlsym(driver, name);
                if (strcmp(owner(first), "libnvshare.so") != 0 || first != second
                    || call(first) != {recorded.ADDED} || *calls != 1)
                    printf("%s of %s\\n", name, owner(first));
            }}
        }}
    """, tmp_path / "program")
    assert run(program, library, tomorrow) == []
