# SPDX-License-Identifier: Apache-2.0
"""The library for aarch64, where the entry of dlsym() is separate assembly, in an emulator. Sharing
a GPU there is tested with the daemon, in tests/integration."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded
from libhook.tests.hook.programs import LAUNCH, compile_c
from libhook.tests.hook.test_interposition_patching import patchable
from libhook.tests.hook.test_interposition_ways import PROGRAM, compiled, expected

ARM = "aarch64-linux-gnu"
LIBHOOK = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which(f"{ARM}-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler and emulator for aarch64 (gcc-aarch64-linux-gnu, qemu-user)")


@pytest.fixture(scope="module")
def arm_library() -> Path:
    make = ["make", "-s", "-j2", "-C", str(LIBHOOK), f"CC={ARM}-gcc", "BUILD=build-aarch64"]
    subprocess.run([*make, "hook"], check=True)
    return LIBHOOK / "build-aarch64" / "libnvshare.so"


@pytest.fixture(scope="module")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded.build(tmp_path_factory.mktemp("driver"), compiler=f"{ARM}-gcc")


def run(program: Path, library: Path, driver: Path) -> list[str]:
    variables = {"LD_PRELOAD": library, "LD_LIBRARY_PATH": driver}
    settings = [part for pair in variables.items() for part in ("-E", "=".join(map(str, pair)))]
    done = subprocess.run(
        ["qemu-aarch64", "-L", f"/usr/{ARM}", *settings, program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_dlsym_with_rtld_next_on_aarch64_finds_the_object_after_the_caller(
    arm_library: Path, arm_driver: Path, tmp_path: Path
) -> None:
    program = compile_c("""
        int main(void)
        {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            void *entry = dlsym(driver, "cuLaunchKernel");
            printf("%s %d %d\\n", owner(entry), call(entry), call(cuLaunchKernel));
            printf("%s\\n", owner(dlsym(RTLD_NEXT, "strchr")));
            printf("%s\\n", owner(dlsym(RTLD_NEXT, "cuLaunchKernel")));
        }
    """, tmp_path / "program", f"-L{arm_driver}", "-lcuda", compiler=f"{ARM}-gcc")
    assert run(program, arm_library, arm_driver) == [
        f"libnvshare.so {LAUNCH} {LAUNCH}", "libc.so.6", "libnvshare.so",
    ]


def test_aarch64_program_finds_every_wrapper(
    arm_library: Path, arm_driver: Path, tmp_path: Path
) -> None:
    program = compiled(PROGRAM, tmp_path / "program", arm_driver, compiler=f"{ARM}-gcc")
    assert run(program, arm_library, arm_driver) == expected("program")


def test_function_of_library_for_aarch64_begins_with_instructions_that_ucx_can_copy(
    arm_library: Path, tmp_path: Path
) -> None:
    def output(*command: object) -> str:
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, check=True).stdout

    output(f"{ARM}-objcopy", "-O", "binary", "-j", ".text", arm_library, tmp_path / "text")
    text = (tmp_path / "text").read_bytes()
    section = re.search(r" \.text +PROGBITS +(\w+)", output("readelf", "-SW", arm_library))
    assert section is not None
    symbols = {line.split()[2]: int(line.split()[0], 16) - int(section[1], 16)
               for line in output(f"{ARM}-nm", arm_library).splitlines()
               if len(line.split()) == 3}
    for name in [*recorded.hooks(), *recorded.others(), "stub_first"]:
        assert patchable(text[symbols[name]:][:32], "aarch64"), name


def test_library_for_aarch64_starts_with_glibc_2_17(arm_library: Path) -> None:
    symbols = subprocess.run(
        [f"{ARM}-objdump", "-T", arm_library], capture_output=True, text=True, check=True).stdout
    numbers = re.findall(r"GLIBC_([\d.]+)", symbols)
    versions = {tuple(map(int, number.split("."))) for number in numbers}
    assert max(versions) == (2, 17)
