# SPDX-License-Identifier: Apache-2.0
"""Full disk, no permission, no bus, no polkit, a taken name: one sentence, and no loss."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.errors import ExitCode, NotKept
from nvshared.hook.protocol import Type
from nvshared.units import MIB, SECOND
from tests.bus.service import PrivateBus, private_bus
from tests.integration.conftest import ROOT, Site, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.test_start import one_sentence

NOBODY_UID = 65534                          # a user that every system has

needs_bus = pytest.mark.skipif(bool(no_bus()), reason=no_bus())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, or be another user")

# Executes the following command in a mount namespace with a folder of 64 KiB.
SMALL_DISK = 'mount -t tmpfs -o size=64k nvshare "$0" && exec "$@"'

# nvsharectl, run by another user.
AS_NOBODY = f"""
import locale, os, socket, sys
import nvshared.cli.settings, nvshared.control.connection
from nvshared.cli.main import main
os.setgroups([])
os.setgid({NOBODY_UID})
os.setuid({NOBODY_UID})
sys.exit(main())
"""


@pytest.fixture
def bus() -> Iterator[PrivateBus]:
    with private_bus() as made:
        yield made


def fill(folder: Path) -> Path:
    """Fills the file system of this folder."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                continue
        except OSError:
            return ballast
    raise AssertionError("unreachable: it is a small disk")


@needs_root
@needs_bus
def test_setting_on_a_full_disk_takes_effect_and_is_reported_as_not_saved(
    site: Site, bus: PrivateBus
) -> None:
    folder = site.folder / "small"
    folder.mkdir()
    site.before = ["unshare", "--mount", "sh", "-c", SMALL_DISK, str(folder)]
    daemon = site.start("--bus", bus.address, "--state-dir", str(folder))
    small = Path(f"/proc/{daemon.pid}/root{folder}")
    with Control(bus.address) as control:
        control.set_tq(5 * SECOND)
        before = (small / "settings.json").read_text()
        ballast = fill(small)
        with pytest.raises(NotKept) as caught:
            control.set_tq(7 * SECOND)
        assert str(caught.value) == (
            "what was changed holds, but will be forgotten at the next start: "
            f"{folder}/settings.json cannot be written: No space left on device; "
            "put that right and change it again"
        )
        assert str(caught.value) in site.log.read_text()
        assert control.snapshot().gpus[0].tq == 7
        assert (small / "settings.json").read_text() == before
        assert sorted(path.name for path in small.iterdir()) == ["ballast", "settings.json"]
        ballast.unlink()
        control.set_tq(9 * SECOND)
        assert json.loads((small / "settings.json").read_text())["everywhere"] == {"tq": 9}


@needs_root
def test_full_disk_ends_the_trace_at_a_whole_line(site: Site) -> None:
    folder = site.folder / "small"
    folder.mkdir()
    site.before = ["unshare", "--mount", "sh", "-c", SMALL_DISK, str(folder)]
    daemon = site.start("--trace", str(folder / "trace"))
    hook = site.hook()
    hook.hello()
    full = f"the trace ends here, {folder}/trace takes no more: No space left on device"

    def written() -> bool:
        assert hook.say(Type.MEMORY)
        return full in site.log.read_text()

    wait_until(written)
    assert hook.allocate(MIB)
    assert site.log.read_text().count("No space left") == 1
    *lines, _ = Path(f"/proc/{daemon.pid}/root{folder}/trace").read_text().split("\n")
    assert len([json.loads(line) for line in lines]) > 100
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE) == 0


def test_daemon_serves_clients_when_the_journal_is_unwritable(site: Site) -> None:
    site.before = ["sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    daemon = site.start()
    hook = site.allocating(MIB)
    hook.close()
    assert site.hook().hello() is not None
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE) == 0


def test_daemon_without_the_bus_does_not_start_and_names_the_address(site: Site) -> None:
    sentence = one_sentence(site.run("--bus", "unix:path=/no/such/bus"), ExitCode.FAILURE)
    assert sentence == (
        "cannot connect to the message bus at 'unix:path=/no/such/bus': "
        "No such file or directory; "
        "is dbus running? --bus chooses another, --bus none does without"
    )
    assert not site.socket.exists()


@needs_root
@needs_bus
def test_set_tq_without_polkit_is_permitted_to_root_only(site: Site, bus: PrivateBus) -> None:
    system = {"DBUS_SYSTEM_BUS_ADDRESS": bus.address}
    site.start("--bus", "system", **system)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, "set-tq", "5"], env={**site.environment, **system},
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == ExitCode.NOT_PERMITTED
    assert done.stderr.splitlines() == [
        f"nvsharectl: com.nvshare.set-tq is not permitted to uid {NOBODY_UID}: "
        "polkit, which could permit it, does not run; run it with sudo"
    ]
    with Control(bus.address) as control:
        assert control.snapshot().gpus[0].tq == 30
        control.set_tq(5 * SECOND)
        assert control.snapshot().gpus[0].tq == 5
