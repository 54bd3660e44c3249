# SPDX-License-Identifier: Apache-2.0
"""Two programs that fit together but for what their frameworks have cached, under the real daemon.

The framework is standin.py.
"""

import subprocess
from collections.abc import Callable

from nvshared import library
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.standin import READY, STAND_IN
from tests.integration.test_kills import finish
from tests.integration.test_own_memory import Program

WANTED = {"NVSHARE_TRIM_CACHES": "1", "PYTHONPATH": str(library.program())}
Eventually = Callable[[Callable[[], bool]], None]

# With its cache each has 300 MiB on a card of 320, and without it 32.
CAPACITY = 320 * MIB
SMALLER = STAND_IN.replace("100 * MIB", "32 * MIB").replace("400 * MIB", "268 * MIB")
WORKS = READY + '''
import select
value, emptied = 3, 0
while not select.select([sys.stdin], [], [], 0.001)[0]:
    assert get(kept + value * MIB % (32 * MIB), 4096) == bytes([value]) * 4096
    value = value % 250 + 1
    call("cuMemsetD8_v2", kept, value, 32 * MIB)
    if caching.emptied != emptied:
        emptied = caching.emptied
        print(json.dumps("emptied"), flush=True)
assert get(kept, 32 * MIB) == bytes([value]) * (32 * MIB)
print(json.dumps(caching.counts()), flush=True)
'''


def moved(site: Site) -> int:
    """How many bytes have had to leave so far."""
    return sum(line["bytes"] for line in site.trace() if line.get("event") == "evicted")


def pair(site: Site, **settings: str) -> list[Program]:
    """One after the other, so that it is known who has the card first."""
    site.environment = {**site.environment, **settings, "NVSHARE_EXAMINE": "0"}
    trace = str(site.folder / "trace")
    site.start("--tq", "200ms", "--capacity", str(CAPACITY), "--trace", trace)
    both = []
    for _ in range(2):
        both.append(Program(site, SMALLER + WORKS))
        assert both[-1].hears() == "ready"
    return both


def test_cached_memory_is_evicted_at_most_once(site: Site) -> None:
    both = pair(site, **WANTED)
    for program in both:
        assert program.hears() == "emptied"
    before = moved(site)
    for program in both:
        program.go_on()
        looked, emptied = program.hears()
        assert looked > emptied == 1
        program.ends_well()
    # What has left since is of the 64 MiB that both use, and those fit together.
    assert moved(site) - before <= 64 * MIB


def test_program_without_trim_is_evicted_with_its_cache(site: Site, eventually: Eventually) -> None:
    both = pair(site)
    eventually(lambda: moved(site) > 64 * MIB)      # more than both use
    for program in both:
        program.go_on()
        assert program.hears() == [0, 0]
        program.ends_well()


def workload(site: Site, seed: int) -> subprocess.Popen[str]:
    """A program in C, of which two do not fit on the card together. Runs until finish()."""
    return site.workload(
        "--memory", "40MiB", "--chunk", "4MiB", "--until-told", "--kernel-us", "2000",
        "--seed", str(seed), "--json", **WANTED)


def test_program_in_c_is_unaffected_by_trim(
    site: Site, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    trace = str(site.folder / "trace")
    site.start("--tq", "100ms", "--capacity", str(60 * MIB), "--trace", trace)
    programs = [workload(site, seed) for seed in range(2)]
    eventually(lambda: moved(site) > 0)
    finish(programs)
