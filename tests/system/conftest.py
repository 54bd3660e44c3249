# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the system tests: a Debian tree, built packages, and containers with both."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.system import card, packages
from tests.system.card import Launch, Program
from tests.system.container import Container
from tests.system.packages import NotBuilt, Packages
from tests.system.tree import NoTree, prepared

USERS = ("alice", "bob")


BUILDERS = ("make", "gcc", "dpkg-buildpackage", "dh", "dh_python3")


def leave_out(config: pytest.Config, why: str) -> NoReturn:
    """Skips the test, or fails it if --require is given."""
    if config.getoption("--require"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest) -> Path:
    """The tree of a Debian 12 to boot. The first time it needs a reachable Debian mirror."""
    try:
        return prepared()
    except NoTree as error:
        leave_out(request.config, str(error))


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    missing = [name for name in BUILDERS if not shutil.which(name)]
    if missing:
        leave_out(request.config, f"to build packages, there is no {' and no '.join(missing)}")
    try:
        return packages.build(tmp_path_factory.mktemp("packages"))
    except NotBuilt as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def bare(tree: Path) -> Iterator[Container]:
    """A container on which nvshared was never installed, with a few users."""
    with Container(tree) as container:
        for user in USERS:
            container.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        yield container


@pytest.fixture(scope="module")
def installed(bare: Container, built: Packages) -> Container:
    """A machine with a GPU, with nvshared installed but neither enabled nor started."""
    install(bare, built)
    card.plug_in(bare)
    return bare


@pytest.fixture(scope="module")
def running(installed: Container) -> Container:
    installed.run("systemctl", "enable", "--now", "nvshared")
    return installed


@pytest.fixture
def launch() -> Iterator[Launch]:
    """A function with the arguments of Program, which starts one. Programs end with the test; if it
    fails, the report has their output."""
    programs: list[Program] = []

    def start(*arguments: Any, **options: Any) -> Program:
        programs.append(Program(*arguments, **options))
        return programs[-1]

    yield start
    for number, program in enumerate(programs, 1):
        print(f"program {number}:\n{program.kill()}")


def install(container: Container, built: Packages) -> str:
    """Installs or upgrades as an administrator would; returns apt's output."""
    return container.run(
        "apt-get", "install", "-y", "-o", "Dpkg::Options::=--force-confold",
        *built.put_into(container), environment={"DEBIAN_FRONTEND": "noninteractive"}).stdout
