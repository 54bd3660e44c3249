# SPDX-License-Identifier: Apache-2.0
"""Physical memory on its way from one client to another, see passing.py."""

from nvshared.record import dataclass


@dataclass(frozen=True, slots=True)
class Parcel:
    """One block's; bytes and microseconds."""

    id: int
    size: int
    fellows: str                        # who may have it
    since: int
