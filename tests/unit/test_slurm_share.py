# SPDX-License-Identifier: Apache-2.0
"""The terms that nvshare-slurm gives a job and takes back. tests/system has a SLURM. Here are
programs that answer as its own do, in a mount namespace, as the script sets its PATH, and SLURM's
are in a folder of their own, as on many clusters."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvshared.terms import TERMS

SCRIPT = Path(__file__).parents[2] / "packaging" / "slurm" / "nvshare-slurm"
# The second program is the script's parent process, as slurmstepd is.
INSIDE = 'mount --bind "$1/local" /usr/local/sbin && mount --bind "$1/driver" /proc/driver && ' \
    'exec "$3" -c "sh $2 $4 7; exit \\$?"'
GIB = 1 << 30
OLD, NEW = "slurmd-n: Gres Name={} Type={} Count={} Index=0 ID=7 File={} (null)", \
    "slurmd: Gres Name={} Type={} Count={} Index=0 ID=7 File={} Links=(null) Flags=HAS_FILE"

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root may mount a folder over another one")


def listed(form: str, *cards: tuple[str, int], kind: str = "(null)") -> str:
    """What `slurmd -G` prints of cards, each with its device node and number of shards."""
    lines = ["slurmd: error: Controller cpu is not enabled!"]
    for device, shards in cards:
        lines += [form.format("shard", kind, shards, device), form.format("gpu", kind, 1, device)]
    return "\n".join(lines)


def begun(folder: Path, *, slurm: str, card: str, memory: Sequence[int], minors: Sequence[int],
          asked: str = "gres/shard:2", act: str = "begin") -> tuple[int | None, str]:
    """Runs the script for a job. Returns the memory limit that it sets, in bytes, and what the
    job's user is told.

    `act`: what the script is called for; `slurm`: the output of `slurmd -G`; `card`: SLURM's number
    of the job's GPU; `memory`: GiB of nvshared's cards by index; `minors`: their device minor
    numbers."""
    uuids = [f"GPU-{index:08}" for index in range(len(memory))]
    gpus = " ".join(f'{index} "{uuid}" "/com/nvshare/gpu/{index}" 0'
                    for index, uuid in enumerate(uuids))
    sizes = " ".join(f"{index}) echo t {size * GIB};;" for index, size in enumerate(memory))
    programs = {
        "opt/slurm/bin/squeue": f'echo "{asked}"',
        "opt/slurm/sbin/slurmd": f"cat >&2 <<END\n{slurm}\nEND",
        "local/busctl": f"""case "$*" in
            *ListGPUs*) echo 'a(usoa{{sv}}) {len(memory)} {gpus}';;
            *MemoryTotal*) for path in "$@"; do case $path in /com/nvshare/gpu/*)
                case ${{path##*/}} in {sizes} *) exit 1;; esac;; esac; done;;
            *SetTenantTerms*) echo "$@" >>{folder}/set;;
            esac""",
    }
    for name, words in programs.items():
        (program := folder / name).parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)
    slurmstepd = folder / "opt/slurm/sbin/slurmstepd"
    shutil.copy("/bin/sh", slurmstepd)
    for index, minor in enumerate(minors):
        (driver := folder / f"driver/nvidia/gpus/0000:{index:02}:00.0").mkdir(parents=True)
        (driver / "information").write_text(
            f"Model: \t\t NVIDIA\nGPU UUID: \t {uuids[index]}\nDevice Minor: \t {minor}\n")
    (folder / "driver").mkdir(exist_ok=True)
    (notes := folder / "notes").mkdir()
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(folder), str(SCRIPT), str(slurmstepd),
         act],
        env={"SLURMD_NODENAME": "n", "SLURM_JOB_GPUS": card, "NVSHARE_SLURM_NOTES": str(notes)},
        stderr=subprocess.DEVNULL, check=True)
    told = (notes / "7").read_text() if (notes / "7").exists() else ""
    if not (folder / "set").exists():
        return None, told
    terms = (folder / "set").read_text().split()
    return int(terms[terms.index("memory-limit") + 2]), told


@pytest.mark.parametrize("form", [OLD, NEW])
@pytest.mark.parametrize(("cards", "card", "asked", "limit"), [
    ([("/dev/nvidia0", 8), ("/dev/nvidia1", 8)], "1", "gres/shard:2", 20),
    ([("/dev/nvidia0", 8), ("/dev/nvidia1", 8)], "0", "gres:shard", 10),
    ([("/dev/nvidia0", 8), ("/dev/nvidia1", 2), ("/dev/nvidia2", 2)], "2", "gres/shard:1", 40),
    ([("/dev/nvidia0", 8), ("/dev/nvidia1", 2)], "0,1", "gres:gpu:h100:1,gres:shard:h100:4", 40),
])
def test_slurm_job_may_allocate_the_part_of_its_card_that_its_shards_are(
    tmp_path: Path, form: str, cards: list[tuple[str, int]], card: str, asked: str, limit: int,
) -> None:
    """The cards have the same memory, and the driver does not tell their device nodes."""
    slurm = listed(form, *cards, kind="h100")
    assert begun(tmp_path, slurm=slurm, card=card, memory=[80] * 3, minors=[], asked=asked) == \
        (limit * GIB, "")


@pytest.mark.parametrize(("cards", "card", "limit"), [
    # The file gres.conf names the second card alone, so SLURM's number of it is 0.
    ([("/dev/nvidia1", 8)], "0", 4),
    # The order of gres.conf is another than that of the device nodes.
    ([("/dev/nvidia10", 4), ("/dev/nvidia1", 8), ("/dev/nvidia0", 8)], "0", 12),
    ([("/dev/nvidia10", 4), ("/dev/nvidia1", 8), ("/dev/nvidia0", 8)], "2", 20),
])
def test_slurm_job_is_limited_by_the_card_of_its_device_node_where_numbers_differ(
    tmp_path: Path, cards: list[tuple[str, int]], card: str, limit: int
) -> None:
    """Nor are the device minor numbers in the order of NVML's indices."""
    assert begun(tmp_path, slurm=listed(OLD, *cards), card=card, memory=[16, 24, 80],
                 minors=[1, 10, 0]) == (limit * GIB, "")


@pytest.mark.parametrize(("slurm", "memory", "minors", "why"), [
    ("slurmd: fatal: Unable to determine this slurmd's NodeName", [80], [0],
     "slurmd -G does not tell the shards of GPU 1"),
    (listed(NEW, ("/dev/nvidia0", 8)), [80], [0], "slurmd -G does not tell the shards of GPU 1"),
    (listed(NEW, ("/dev/nvidia0", 8), ("/dev/nvidia1", 0)), [80, 80], [0, 1],
     "slurmd -G does not tell the shards of GPU 1"),
    # The card is none of nvshared's; nothing tells the device nodes; an instance of MIG.
    (listed(NEW, ("/dev/nvidia0", 8), ("/dev/nvidia3", 8)), [80, 16], [0, 1],
     "nvshared does not know /dev/nvidia3, and its GPUs have different memory"),
    (listed(NEW, ("/dev/nvidia0", 8), ("/dev/nvidia1", 8)), [80, 16], [],
     "nvshared does not know /dev/nvidia1, and its GPUs have different memory"),
    (listed(NEW, ("/dev/nvidia0", 8), ("/dev/nvidia-caps/nvidia-cap1", 8)), [80, 16], [0, 1],
     "nvshared does not know /dev/nvidia-caps/nvidia-cap1, and its GPUs have different memory"),
])
def test_slurm_job_has_no_limit_and_its_user_is_told_why_where_its_card_is_not_known(
    tmp_path: Path, slurm: str, memory: list[int], minors: list[int], why: str
) -> None:
    assert begun(tmp_path, slurm=slurm, card="1", memory=memory, minors=minors) == (
        None, f"the memory of this job's shards is not known ({why}): "
        "its memory on the GPU is not limited to them\n")


def test_slurm_job_has_no_term_left_after_its_end(tmp_path: Path) -> None:
    """A later job may get its number, and would have the terms that an administrator set for it."""
    assert begun(tmp_path, slurm="", card="0", memory=[80], minors=[], act="end") == (0, "")
    words = (tmp_path / "set").read_text().split()
    assert words[words.index("SetTenantTerms"):][1:6] == [
        "sa{sv}", "job:7", str(len(TERMS) + 1), "source", "s"]
    taken = {words[at - 1]: words[at + 1] for at, word in enumerate(words) if word == "t"}
    assert taken == dict.fromkeys(TERMS, "0")
