# SPDX-License-Identifier: Apache-2.0
"""One thing that was looked at, and how it is."""

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How good or bad."""

    OK = "ok"
    NOTE = "note"                       # good to know
    WARNING = "warning"                 # works, but not as well as it could
    FAULT = "fault"                     # programs cannot share their GPU as long as it is so


@dataclass(frozen=True, slots=True)
class Finding:
    """`words` is a sentence without its full stop; `advice` says what to do, or is empty."""

    topic: str
    grade: Grade
    words: str
    advice: str = ""


def ok(topic: str, words: str) -> Finding:
    """All is well."""
    return Finding(topic, Grade.OK, words)


def note(topic: str, words: str, advice: str = "") -> Finding:
    """Good to know."""
    return Finding(topic, Grade.NOTE, words, advice)


def warning(topic: str, words: str, advice: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(topic, Grade.WARNING, words, advice)


def fault(topic: str, words: str, advice: str) -> Finding:
    """Programs cannot share their GPU as long as it is so."""
    return Finding(topic, Grade.FAULT, words, advice)
