# SPDX-License-Identifier: Apache-2.0
"""Prometheus for the tests: the machine's, or Debian's package unpacked into a cache.

Nothing is installed, as Debian's package would start a server of its own.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PROGRAMS = ("promtool", "prometheus")


class NoPrometheus(Exception):
    """Prometheus is neither installed nor could be fetched; the message has the reason."""


def there() -> Path | None:
    promtool = Path(shutil.which("promtool") or "/nowhere")
    for folder in (promtool.parent, _cached()):
        if all((folder / name).is_file() for name in PROGRAMS):
            return folder
    return None


def fetched() -> Path:
    """The folder of there(). Fetches Prometheus with apt if absent. Raises NoPrometheus."""
    return there() or _fetch()


def _cached() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvshare"
    return cache / "prometheus" / "usr" / "bin"


def _fetch() -> Path:
    target = _cached().parents[1]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        _run(folder, "apt-get", "-qq", "download", "prometheus")
        (package,) = folder.glob("*.deb")
        _run(folder, "dpkg-deb", "-x", str(package), "unpacked")
        shutil.rmtree(target, ignore_errors=True)
        (folder / "unpacked").rename(target)
    return _cached()


def _run(folder: Path, *command: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoPrometheus(f"there is no Prometheus, and no {command[0]} to fetch it") from error
    except subprocess.CalledProcessError as error:
        raise NoPrometheus(f"{' '.join(command[:3])} failed: {error.stderr}") from error
