# SPDX-License-Identifier: Apache-2.0
"""What nvshare-slurm writes into the administrator's comment of a job. tests/system has a SLURM.
Here are programs that answer as its own do, in a mount namespace, as the script sets its PATH."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "slurm" / "nvshare-slurm"
HISTORY = "from,user,tenant,t,gpu,x,waited\\na,b,job:7,1,5,0,9\\n"
USED = "nvshare on n: 5 GPU seconds, waited 9 seconds"
# `scontrol show job` prints texts of the job's user as they are.
SHOWN = "JobId=7 JobName=x\\n   Comment=hello\\n   AdminComment=paid\\n   Power=\\n"
INSIDE = 'mount --bind "$1" /usr/local/sbin && exec sh "$2" account 7 7'


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a folder over another one")
@pytest.mark.parametrize(("comment", "written"), [
    ("(null)", USED), ("", USED), ("checked by the office", f"checked by the office; {USED}"),
    (f"checked; {USED.replace('5', '2')}; done", f"checked; done; {USED}"),
    ("nvshare on m: 1 GPU seconds, waited 2 seconds",
     f"nvshare on m: 1 GPU seconds, waited 2 seconds; {USED}"),
])
def test_slurm_account_keeps_the_administrators_comment_and_takes_no_text_of_the_user(
        tmp_path: Path, comment: str, written: str) -> None:
    squeue = (f'case "$*" in *--Format=admin_comment*) printf "%-65536s\\n" "{comment}";; '
              "*) echo 2026-11-28T10:00:00;; esac")
    scontrol = f'case "$1" in show) printf "{SHOWN}";; *) echo "$@" >{tmp_path}/written;; esac'
    for name, words in (("squeue", squeue), ("scontrol", scontrol),
                        ("nvsharectl", f'printf "{HISTORY}"')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{words}\n")
        program.chmod(0o755)
    subprocess.run(
        ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(tmp_path), str(SCRIPT)],
        env={"SLURMD_NODENAME": "n", "PATH": "/bin"}, check=True)
    assert (tmp_path / "written").read_text() == f"update JobId=7 AdminComment={written}\n"
