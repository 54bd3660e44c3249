# SPDX-License-Identifier: Apache-2.0
"""The result of one check."""

from enum import StrEnum
from functools import partial
from typing import NamedTuple


class Grade(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"                       # information
    WARNING = "warning"                 # sharing works, with a disadvantage
    FAULT = "fault"                     # programs cannot share their GPU


class Finding(NamedTuple):
    """`words` is a sentence without its full stop; `advice` says what to do, or is empty."""

    grade: Grade
    topic: str
    words: str
    advice: str = ""


ok, note, warning, fault = (partial(Finding, grade) for grade in Grade)
