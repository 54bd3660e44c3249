# SPDX-License-Identifier: Apache-2.0
"""The memory that nvshare-slurm gives a job for its shards. tests/system has a SLURM. Here are
programs that answer as its own do, in a mount namespace, as the script sets its PATH."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "slurm" / "nvshare-slurm"
INSIDE = 'mount --bind "$1" /usr/local/sbin && exec sh "$2" begin 7'
MEMORY = (80, 80, 20, 16)               # GiB of the cards
GIB = 1 << 30


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a folder over another one")
@pytest.mark.parametrize(("cards", "used", "card", "asked", "limit"), [
    ("gpu:2,shard:16", "gpu:0(IDX:N/A),shard:2(2/8,0/8)", "1", "gres/shard:2", 20),
    ("gpu:2,shard:16", "gpu:0(IDX:N/A),shard:0(IDX:N/A)", "1", "gres/shard:2", 20),    # older ones
    ("gpu:h100:2(S:0-1),shard:16(S:0-1)", "(null)", "0", "gres:shard", 10),
    # Cards of several types, and with different numbers of shards.
    ("gpu:h100:2,gpu:t4:2,shard:h100:16,shard:t4:4",
     "gpu:h100:0(IDX:N/A),gpu:t4:0(IDX:N/A),shard:h100:1(1/8,-/8),shard:t4:0(0/2,0/2)",
     "2", "gres/shard:1", 10),
    ("gpu:h100:2,gpu:t4:2,shard:h100:16,shard:t4:4",
     "gpu:h100:1(IDX:0),shard:h100:8(-/8,0/8),shard:t4:0(0/2,1/2)", "3", "gres/shard:1", 8),
    ("gpu:4,shard:19", "gpu:0(IDX:N/A),shard:3(3/8,0/8,0/2,0/1)", "0", "gres/shard:2", 20),
    ("gpu:4,shard:19", "gpu:0(IDX:N/A),shard:3(3/8,0/8,0/2,0/1)", "3", "gres/shard:1", 16),
    # Nothing tells how many shards the card has: no limit, and the job's user is told.
    ("gpu:h100:2,gpu:t4:2,shard:20", "(null)", "2", "gres/shard:1", None),
    ("gpu:4,shard:19", "shard:0(IDX:N/A)", "2", "gres/shard:1", None),
    ("gpu:4,shard:18", "gpu:0(IDX:N/A),shard:3(3/8,0/8,0/2,0/0)", "3", "gres/shard:1", None),
])
def test_slurm_job_may_allocate_the_part_of_its_card_that_its_shards_are(
        tmp_path: Path, cards: str, used: str, card: str, asked: str, limit: int | None) -> None:
    memory = " ".join(f"{index}) size={size * GIB};;" for index, size in enumerate(MEMORY))
    programs = {
        "squeue": f'echo "{asked}"',
        "sinfo": f'case "$*" in *GresUsed*) printf "%-4096s\\n" "{used}";; '
                 f'*) echo "{cards}";; esac',
        "busctl": f"""case "$*" in
            *MemoryTotal*) for path in "$@"; do case $path in /com/nvshare/gpu/*)
                case ${{path##*/}} in {memory} esac;; esac; done; echo "t $size";;
            *SetTenantTerms*) echo "$@" >>{tmp_path}/set;;
            esac""",
    }
    for name, words in programs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)
    (notes := tmp_path / "notes").mkdir()
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(tmp_path), str(SCRIPT)], check=True,
        env={"SLURMD_NODENAME": "n", "SLURM_JOB_GPUS": card, "PATH": "/bin",
             "NVSHARE_SLURM_NOTES": str(notes)}, stderr=subprocess.DEVNULL)
    if limit is None:
        assert "the memory of this job's shards is not known" in (notes / "7").read_text()
        assert not (tmp_path / "set").exists()
    else:
        assert f" memory-limit t {limit * GIB} " in (tmp_path / "set").read_text()
