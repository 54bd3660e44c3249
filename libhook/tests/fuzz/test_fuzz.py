# SPDX-License-Identifier: Apache-2.0
"""A program continues, with all bytes of its memory, whatever a daemon or another program sends;
see fuzz.h."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long           # the programs alone take half a minute to compile
LIBHOOK = Path(__file__).parents[2]
RUNS = 60


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Names a folder with a path short enough for a socket. Only libFuzzer searches for leaks,
    because it knows when a run ends."""
    with tempfile.TemporaryDirectory() as folder:
        yield {**os.environ, "NVSHARE_FUZZ_FOLDER": folder, "ASAN_OPTIONS": "detect_leaks=0"}


def make(target: str) -> None:
    subprocess.run(["make", "-s", "-C", str(LIBHOOK), target], check=True)


@pytest.mark.parametrize("program", ["random", "sharing-random"])
def test_random_messages_do_not_crash_the_order_and_ipc_parsers(
    environment: dict[str, str], program: str
) -> None:
    """Orders of a daemon; and clients and exporters of memory shared between processes."""
    make("fuzz-random")
    done = subprocess.run(
        [LIBHOOK / "build" / "fuzz" / program, str(RUNS)],
        env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{RUNS} runs\n"


def clang_can_fuzz() -> bool:
    """Whether clang is installed with libFuzzer, which is a separate package."""
    if shutil.which("clang") is None:
        return False
    done = subprocess.run(
        ["clang", "-fsanitize=fuzzer", "-x", "c", "-", "-o", "/dev/null"],
        input="int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n < 0; }",
        capture_output=True, text=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not clang_can_fuzz(), reason="no clang with libFuzzer (clang, libclang-rt-dev)")
@pytest.mark.parametrize("program", ["orders", "sharing"])
def test_libfuzzer_finds_no_crash_in_five_seconds(
    tmp_path: Path, environment: dict[str, str], program: str
) -> None:
    make(f"build/fuzz/{program}")
    (tmp_path / "corpus").mkdir()
    done = subprocess.run(
        [LIBHOOK / "build" / "fuzz" / program, "-max_total_time=5", "-max_len=400", "-seed=1",
         "-timeout=300", "-print_funcs=0", f"-artifact_prefix={tmp_path}/",
         str(tmp_path / "corpus")],
        env={**environment, "ASAN_OPTIONS": "detect_leaks=1"},
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr
