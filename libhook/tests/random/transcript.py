# SPDX-License-Identifier: Apache-2.0
"""Reduces a transcript of build/random to the lines that are compared between simulator and card.

On a machine with a card, without LD_LIBRARY_PATH:

    build/random --seed 20000 --sequences 40 | python -m libhook.tests.random.transcript

prints what answers.txt.xz has of this seed, below lines that name the card, the driver and these
options. Seeds 20000, 30000, 40000 and 50000 are recorded, one after the other.
Each call of roll() in the program changes the sequence of a seed: after a changed call of roll()
all of them must be recorded again on a card.
"""

import re
import sys
from collections.abc import Iterable, Iterator

BEGINS = re.compile(r"cuDevicePrimaryCtxRetain\(sequence (\d+)\) = ")
# The call succeeded, and the line has no result except the name of a new block.
PLAIN = re.compile(r"\) = 0( b\d+( aligned)?)?$")
# In place of a result that is not compared, the line has the reason (calls.c) in parentheses.
EXCUSED = re.compile(r"\) = .*\(")


def reduced(lines: Iterable[str]) -> Iterator[str]:
    """For each sequence its number of lines, and the lines with a result besides success.

    Lines before the first sequence are left out.
    """
    kept: list[str] = []
    title, calls = "", 0
    for line in lines:
        begins = BEGINS.match(line)
        if begins:
            if title:
                yield from (f"{title}, {calls} lines", *kept)
            title, calls, kept = f"sequence {begins[1]}", 0, []
        calls += 1
        if title and not PLAIN.search(line) and not EXCUSED.search(line):
            kept.append("  " + line)
    if title:
        yield from (f"{title}, {calls} lines", *kept)


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in reduced(sys.stdin.read().splitlines()))
