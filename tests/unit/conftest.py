# SPDX-License-Identifier: Apache-2.0
"""What several files of the unit level need."""

from collections.abc import Iterator

import pytest

from nvshared.history.store import File


@pytest.fixture
def closed_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the databases of a test at its end; Python 3.13 warns of those left open."""
    made: list[File] = []
    begin = File.__init__

    def noted(file: File, *given: object) -> None:
        begin(file, *given)             # type: ignore[arg-type]
        made.append(file)

    monkeypatch.setattr(File, "__init__", noted)
    yield
    for file in made:
        file.close()
