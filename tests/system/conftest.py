# SPDX-License-Identifier: Apache-2.0
"""What the system tests stand on: a tree, a booted container, the built packages in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.container import Container
from tests.system.tree import NoTree, prepared


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest) -> Path:
    """A Debian 12 to boot. Without a mirror in reach the level is left out, or fails if it was
    asked for by name."""
    try:
        return prepared()
    except NoTree as error:
        if request.config.getoption("--require") == "system":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bare(tree: Path) -> Iterator[Container]:
    """A machine that has never heard of nvshared."""
    with Container(tree) as container:
        yield container
