# SPDX-License-Identifier: Apache-2.0
"""Log lines: priorities for the journal, full pipes, and limited rates."""

import logging
import os
import sys
from collections.abc import Iterator
from functools import partial
from threading import Thread

import pytest

from nvshared.report import log
from nvshared.report.log import BURST, INTERVAL, JournalFormatter, Limited
from tests.unit.scripted import Time

LONG = 60.0                             # seconds that a busy machine may take


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """Puts the root logger back as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_each_log_line_of_a_record_has_the_priority_of_the_record() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "it %s", ("failed",), sys.exc_info())
    lines = JournalFormatter("%(message)s").format(record).splitlines()
    assert lines[0] == "<3>it failed"
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize("under_systemd", [True, False])
def test_log_lines_have_a_priority_only_under_systemd(
        root: logging.Logger, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
        under_systemd: bool) -> None:
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


def test_log_line_is_dropped_when_a_write_to_stderr_would_block(
        monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as journal, os.fdopen(writing, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        log.write_line("read")
        telling = Thread(target=lambda: log.write_line("x" * (1 << 22)), daemon=True)
        telling.start()                 # writes far more than a pipe holds
        telling.join(LONG)
        assert not telling.is_alive()
        assert journal.readline() == b"read\n"


@pytest.fixture
def limited(time: Time) -> Limited:
    return Limited(logging.getLogger("nvshared.test"), time.clock, time.timer)


def test_rate_limited_log_omits_lines_of_a_kind_after_a_burst_and_logs_how_many(
        caplog: pytest.LogCaptureFixture, time: Time, limited: Limited) -> None:
    for number in range(BURST + 5):
        limited.say(logging.WARNING, "garbage", partial("line {}".format, number))
    limited.say(logging.ERROR, ("garbage", 1001), lambda: "another kind")      # kind with a uid
    assert caplog.messages == [*(f"line {number}" for number in range(BURST)), "another kind"]
    caplog.clear()
    time.pass_by(INTERVAL)              # the summary needs no further line
    assert caplog.record_tuples == [(
        "nvshared.test", logging.WARNING,
        f"5 more such lines were left out within 30 s, the last: line {BURST + 4}")]
    caplog.clear()
    limited.say(logging.WARNING, "garbage", lambda: "again")
    assert caplog.messages == ["again"]
    time.pass_by(INTERVAL)
    assert caplog.messages == ["again"]
    assert not time.timers


def test_rate_limited_log_forgets_old_kinds_and_does_not_format_omitted_lines(
        time: Time, limited: Limited) -> None:
    made: list[int] = []

    def words(uid: int) -> str:
        made.append(uid)
        return "came"

    for uid in range(1000):
        limited.say(logging.INFO, ("came", uid), partial(words, uid))
        time.pass_by(INTERVAL // 10)
    assert len(limited._kinds) <= 10
    for _ in range(BURST * 3):
        limited.say(logging.INFO, ("came", 7), partial(words, 7))
    assert len(made) == 1000 + BURST
