# SPDX-License-Identifier: Apache-2.0
"""Several changes for one command: whoever is refused the second hears that the first holds."""

from collections import Counter
from collections.abc import Callable, Sequence

from nvshared.errors import NvshareError


def carry_out(steps: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Takes the steps one after the other; each has a name, the same where GPUs alone differ.

    The error of one that fails begins with what is set already.
    """
    all_of = Counter(name for name, _ in steps)
    done: Counter[str] = Counter()
    for name, step in steps:
        try:
            step()
        except NvshareError as error:
            held = [
                one if count == all_of[one] else f"{one} on {count} of {all_of[one]} GPUs"
                for one, count in done.items()
            ]
            if held:
                error.message = f"only {' and '.join(held)} is set: {error.message}"
            raise
        done[name] += 1
