# SPDX-License-Identifier: Apache-2.0
"""The table of tiers: an added tier needs no other place, and the library has the same order."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from nvshared.tiers import TIERS

ROOT = Path(__file__).parents[2]
# The library's names. Blocks of managed memory have a tier of their own, in host memory.
LIBRARY = {"peer": "neighbour", "host": "host", "disk": "disk"}
ROW = '''
    Tier("second",
         ("client_second_bytes", "Bytes in the second region of host memory",
          lambda memory: memory.host // 2),
         (("second_used_bytes", "Bytes of the second region in use", "used"),),
         column="SECOND", place="to the second region", slow="the second region"),
)


def by_name'''
CHECK = '''
import sys
from pathlib import Path

from nvshared.bus.services import ClientInterface
from nvshared.report.families import families
from nvshared.scheduler.events import Memory
from nvshared.scheduler.tenants import Division, ClientTotals
from nvshared.settings.config import load
from nvshared.tui import tables
from nvshared.units import SECOND

file = Path(sys.argv[1])
file.write_text("[gpu]\\ntiers = host, second\\n")
assert load(file, {}, {}).tiers == ("host", "second")
assert {"nvshare_client_second_bytes", "nvshare_second_used_bytes"} <= families().keys()
class Client:
    memory = Memory(host=8)
assert ClientInterface(None, Client()).values(["Tiers"])["Tiers"].value == {"host": 8, "second": 4}
assert "SECOND" in tables.CLIENT
usage = ClientTotals(division=Division(), since=0).usage(Memory(host=1 << 20), SECOND, 0, 0)
assert usage.host_memory == 1
'''


def test_tiers_are_listed_in_the_order_in_which_the_library_evicts_blocks_to_them() -> None:
    listed = (ROOT / "libhook/src/tier/tiers.def").read_text()
    names = re.findall(r"^TIER\((\w+)\)", listed, re.MULTILINE)
    assert [LIBRARY[name] for name in names if name in LIBRARY] == [tier.name for tier in TIERS]


def test_new_tier_is_one_row_and_appears_in_setting_metrics_bus_and_tables(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "nvshared", tmp_path / "nvshared",
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "dbus", tmp_path / "dbus")
    file = tmp_path / "nvshared" / "tiers.py"
    file.write_text(file.read_text().replace(")\n\n\ndef by_name", ROW.lstrip("\n")))
    subprocess.run([sys.executable, "-c", CHECK, str(tmp_path / "nvshared.conf")], check=True,
                   cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": ""})
