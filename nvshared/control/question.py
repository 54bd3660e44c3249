# SPDX-License-Identifier: Apache-2.0
"""What can be asked of nvshared: one call of one method."""

from typing import Any, NamedTuple


class Question(NamedTuple):
    """A method of nvshared and what it is given."""

    path: str
    interface: str
    member: str
    signature: str = ""
    body: tuple[Any, ...] = ()
