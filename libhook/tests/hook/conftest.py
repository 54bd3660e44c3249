# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the interposition tests: the library, and a driver for it."""

from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver

LIBRARY = Path(__file__).parents[2] / "build" / "libnvshare.so"


@pytest.fixture(scope="session")
def library() -> Path:
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is not built; run make -C libhook")
    return LIBRARY


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_driver.build(tmp_path_factory.mktemp("driver"))
