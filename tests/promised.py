# SPDX-License-Identifier: Apache-2.0
"""What stays the same between minor versions, as lists in tests/promises/.

A list may grow, and loses no line before the next major version: a test fails for a kept line that
no longer holds. After a release, `python -m tests.promised` adds what is new (the keys of --json by
test_promises.py of the integration level, with NVSHARE_KEEP=1).
"""

from argparse import _SubParsersAction
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nvshared.cli.main import VERBS, build
from nvshared.errors import ExitCode
from nvshared.hook.packets import places
from nvshared.hook.protocol import OLDEST, VERSION, Flag, Park, Refusal, Type, Wait
from nvshared.kubelet.annotations import ANNOTATION_TERMS
from nvshared.report.families import families
from nvshared.settings import config
from nvshared.settings.rules import PARSERS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "promises"
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Lines are added, never changed: promised.py\n"


def kept(name: str) -> list[str]:
    """The lines of a list."""
    text = (FOLDER / f"{name}.txt").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def keep(name: str, lines: Iterator[str] | set[str]) -> None:
    """Adds lines to a list."""
    path = FOLDER / f"{name}.txt"
    there = set(kept(name)) if path.exists() else set()
    path.write_text(HEAD + "".join(f"{line}\n" for line in sorted(there | set(lines))))


def dbus() -> Iterator[str]:
    """Members of the D-Bus interfaces with their types."""
    for path in sorted((ROOT / "dbus").glob("com.nvshare.*.xml")):
        (interface,) = ElementTree.parse(path).getroot()
        for member in interface:
            if not isinstance(member.tag, str) or member.tag == "annotation":
                continue
            types = [f"{one.get('direction', 'out')} {one.get('type')}" for one in member
                     if one.tag == "arg"]
            access = [f"{member.get('type')} {member.get('access')}"]
            yield " ".join([interface.attrib["name"], member.tag, member.attrib["name"],
                            *(access if member.tag == "property" else types)])


def names() -> Iterator[str]:
    """Commands with their options, exit statuses, settings, terms, metrics, annotations."""
    for action in build(VERBS)._actions:
        if isinstance(action, _SubParsersAction):
            for verb, parser in action.choices.items():
                yield f"command {verb}"
                yield from (f"command {verb} {option}" for one in parser._actions
                            for option in one.option_strings)
    yield from (f"exit {int(code)} {code.name}" for code in ExitCode)
    yield from (f"setting {one.section} {one.name}" for one in config.options())
    yield from (f"term {name}" for name in PARSERS)
    yield from (f"metric {name} {one.type}" for name, one in families().items())
    yield from (f"annotation {name}" for name in ANNOTATION_TERMS)


def protocol(version: int) -> Iterator[str]:
    """Types, flags and reasons of the protocol, and where fields are in packets of a version."""
    for kind in Type:
        yield f"message {kind.name} {int(kind)}"
        yield from (f"field {kind.name} {one.row.name or 'flags'} {one.offset} {one.size}"
                    for one in places(kind, version))
    yield from (f"{one.__name__} {each.name} {int(each)}"
                for one in (Flag, Refusal, Wait, Park) for each in one)


def keys(value: Any, path: str = "") -> Iterator[str]:
    """Each path in a value of --json with its kind; `[]` is any element of a list."""
    match value:
        case dict():
            for key, inside in value.items():
                yield from keys(inside, f"{path}.{key}" if path else key)
        case list():
            yield f"{path} list"
            for inside in value:
                yield from keys(inside, f"{path}[]")
        case bool():
            yield f"{path} boolean"
        case int() | float():
            yield f"{path} number"
        case str():
            yield f"{path} string"
        case _:
            yield f"{path} null"


LISTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "dbus": dbus, "names": names,
    **{f"protocol-{version}": partial(protocol, version) for version in (OLDEST, VERSION)}}

if __name__ == "__main__":
    for name, made in LISTS.items():
        if name in ("dbus", "names", f"protocol-{VERSION}"):    # an earlier protocol is complete
            keep(name, made())
