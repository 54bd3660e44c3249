# SPDX-License-Identifier: Apache-2.0
"""The daemon on the message bus."""

from nvshared import dbus  # noqa: F401, isort: skip (first: it keeps dbus-next's package empty)
from nvshared.bus.publication import Publication, publish

__all__ = ["Publication", "publish"]
