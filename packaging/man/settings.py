# SPDX-License-Identifier: Apache-2.0
"""Prints the settings' file that is installed: every setting, commented out, with its default."""

import textwrap

from nvshared.settings.config import options

INTRODUCTION = """\
# SPDX-License-Identifier: Apache-2.0
# The settings of nvshared, with their defaults. nvshared.conf(5) describes them.
# Better than changing this file: put your settings into files of your own,
# /etc/nvshare/nvshared.conf.d/*.conf. They are read after this one.
# The daemon reads all of them again when one has changed. Settings of [gpu], debug
# and rules for tenants then hold at once, the others from the next start:
# systemctl restart nvshared
"""
# What the service and its units settle, and a person who runs it by hand gives as an option.
ELSEWHERE = frozenset({"socket", "bus", "state-dir"})


def text() -> str:
    """The whole file."""
    lines = [INTRODUCTION.rstrip()]
    section = ""
    for option in options():
        if option.name in ELSEWHERE:
            continue
        if option.section != section:
            section = option.section
            lines += ["", f"[{section}]"]
        words = option.help[0].upper() + option.help[1:]
        lines += ["", *textwrap.wrap(words, 78, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"#{option.name} = {option.default}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(text())
