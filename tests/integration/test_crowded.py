# SPDX-License-Identifier: Apache-2.0
"""Contexts cannot leave the card: thirty programs whose contexts nearly fill it."""

from tests.integration.conftest import BUILD, Site, wait_until

PROGRAMS = 30                           # with a context of 8 MiB each, on 256 MiB
OUT_OF_MEMORY = 3                       # exit status of nvshare-workload


class Workload:
    def __init__(self, site: Site, name: str, size: str) -> None:
        self.output = site.folder / name
        with self.output.open("w") as output:
            self.popen = site.program(
                # Kernels that wait: thirty computing programs would starve the tests beside them.
                [BUILD / "nvshare-workload", "--memory", size, "--chunk", "4MiB", "--rounds", 1,
                 "--kernel-us", 2000, "--until-told", "--json"], stdout=output)

    def finish(self) -> int:
        """Exit status of the program, which its output confirms."""
        self.popen.communicate("")
        said = self.output.read_text()
        assert ('"right": true' in said) == (self.popen.returncode == 0)
        assert ("out of memory" in said) == (self.popen.returncode == OUT_OF_MEMORY)
        return self.popen.returncode


def test_program_waits_with_a_logged_reason_while_contexts_of_others_fill_the_card(
    site_with_reserves: Site
) -> None:
    site_with_reserves.start("--tq", "100ms", "--stuck-after", "1s")
    first = Workload(site_with_reserves, "first", "160MiB")
    wait_until(lambda: '"allocated"' in first.output.read_text())
    others = [Workload(site_with_reserves, f"other{i}", "1MiB") for i in range(PROGRAMS - 1)]
    said = f"nvshare-workload[{first.popen.pid}] waits: it needs 162 MiB, and no more than"
    wait_until(lambda: said in site_with_reserves.log.read_text())
    codes = {other.finish() for other in others}
    assert 0 in codes
    assert codes <= {0, OUT_OF_MEMORY}
    assert first.finish() == 0
