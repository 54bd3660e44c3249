# SPDX-License-Identifier: Apache-2.0
"""What of a transcript of build/random is kept, so that the simulator can be compared with a card.

On a machine with a card, without LD_LIBRARY_PATH:

    build/random --seed 20000 --sequences 40 | python -m libhook.tests.random.transcript

writes what belongs into answers/20000.txt, below the lines that say which card and driver it was.
What a seed means is decided by every roll of the program's dice: where one is changed, the
recordings must be made again, on a card.
"""

import re
import sys
from collections.abc import Iterable, Iterator

BEGINS = re.compile(r"cuDevicePrimaryCtxRetain\(sequence (\d+)\) = ")
# The call succeeded, and the line has no result except the name of a new block.
PLAIN = re.compile(r"\) = 0( b\d+( aligned)?)?$")
# The reason why an answer is not compared (calls.c) stands in its place, in parentheses.
EXCUSED = re.compile(r"\) = .*\(")


def reduced(lines: Iterable[str]) -> Iterator[str]:
    """How many lines each sequence has, and which calls were answered with more than success.

    What stands before the first sequence is left out.
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
