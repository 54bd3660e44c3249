# SPDX-License-Identifier: Apache-2.0
"""The daemon on a full disk or with an unwritable journal reports it and loses nothing."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.errors import NotKept
from nvshared.hook.protocol import Type
from nvshared.units import MIB, SECOND
from tests.bus.service import PrivateBus, private_bus
from tests.integration.conftest import Site, wait_until
from tests.integration.fakehook import PATIENCE

needs_bus = pytest.mark.skipif(bool(no_bus()), reason=no_bus())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, or be another user")

# Executes the following command in a mount namespace with a folder of 64 KiB.
SMALL_DISK = 'mount -t tmpfs -o size=64k nvshare "$0" && exec "$@"'


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
            "the change holds, but is forgotten if nvshared ends now: "
            f"{folder}/settings.json cannot be written: No space left on device; "
            "put that right: it is then written within seconds"
        )
        assert str(caught.value) in site.log.read_text()
        assert control.snapshot().gpus[0].tq == 7
        assert (small / "settings.json").read_text() == before
        assert sorted(path.name for path in small.iterdir()) == [
            "ballast", "cards.json", "settings.json"]
        ballast.unlink()
        wait_until(lambda: json.loads((small / "settings.json").read_text())["everywhere"] == {
            "tq": 7})
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
