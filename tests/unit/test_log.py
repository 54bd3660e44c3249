# SPDX-License-Identifier: Apache-2.0
"""Lines for the journal."""

import logging
import os
import sys
from collections.abc import Iterator

import pytest

from nvshared import log
from nvshared.log import BURST, INTERVAL, JournalFormatter, Limited
from tests.unit.scripted import Time


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Puts the root logger back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_each_line_of_a_record_has_its_priority() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "it %s", ("failed",), sys.exc_info())
    lines = JournalFormatter("%(message)s").format(record).splitlines()
    assert lines[0] == "<3>it failed"
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize("under_systemd", [True, False])
def test_the_journal_gets_priorities_and_a_person_the_time(
    root: logging.Logger, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, under_systemd: bool
) -> None:
    status = os.fstat(2)
    stream = f"{status.st_dev}:{status.st_ino}" if under_systemd else "1:1"
    stderr = os.fdopen(os.dup(2), "w")
    monkeypatch.setattr("sys.stderr", stderr)
    log.start({"JOURNAL_STREAM": stream}, debug=False)
    logging.getLogger("nvshared.x").warning("careful")
    logging.getLogger("nvshared.x").debug("not said")
    stderr.close()
    said = capfd.readouterr().err
    assert said.startswith("<4>careful\n") is under_systemd
    assert said.endswith("careful\n")
    log.set_debug(True)
    assert root.level == logging.DEBUG


def test_a_kind_is_silenced_for_a_while_and_what_was_held_back_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = Time()
    limited = Limited(logging.getLogger("nvshared.test"), time.clock)
    for number in range(BURST + 5):
        limited.warning("garbage", f"line {number}")
    limited.warning("silence", "another kind")
    assert len(caplog.records) == BURST + 1
    time.now += INTERVAL
    limited.warning("garbage", "again")
    assert [record.message for record in caplog.records[BURST + 1:]] == [
        "5 more of the kind: garbage", "again"
    ]
