# SPDX-License-Identifier: Apache-2.0
"""One thing that was looked at, and how it is."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Grade(StrEnum):
    """How good or bad."""

    OK = "ok"
    NOTE = "note"                       # good to know
    WARNING = "warning"                 # works, but not as well as it could
    FAULT = "fault"                     # programs cannot share their GPU as long as it is so


@dataclass(frozen=True, slots=True)
class Finding:
    """`words` is a sentence without its full stop; `advice` says what to do, or is empty."""

    grade: Grade
    topic: str
    words: str
    advice: str = ""


ok, note, warning, fault = (partial(Finding, grade) for grade in Grade)
