# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several files of unit tests use."""

from collections.abc import Iterator

import pytest

from nvshared.history.store import HistoryStore
from tests.unit.scripted import Time


@pytest.fixture
def time() -> Time:
    """A clock that only the test moves."""
    return Time()


@pytest.fixture
def closed_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the databases of a test at its end; Python 3.13 warns of those left open."""
    made: list[HistoryStore] = []
    begin = HistoryStore.__init__

    def noted(file: HistoryStore, *given: object) -> None:
        begin(file, *given)             # type: ignore[arg-type]
        made.append(file)

    monkeypatch.setattr(HistoryStore, "__init__", noted)
    yield
    for file in made:
        file.close()
