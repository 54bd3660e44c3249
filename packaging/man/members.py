# SPDX-License-Identifier: Apache-2.0
"""The descriptions of the interfaces on the bus, out of dbus/*.xml.

The comment before an interface or a member describes it:

    Name:
    @argument: What it is.

    Sentences about the member.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

DIRECTIONS = {"method": "in", "signal": "out"}


@dataclass(frozen=True, slots=True)
class Member:
    """A method, a property or a signal."""

    kind: str
    name: str
    declaration: str                    # as busctl introspect shows it
    arguments: tuple[tuple[str, str], ...]          # name, what it is
    description: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One file's."""

    name: str
    description: str
    members: tuple[Member, ...]


def read(path: Path) -> Iterator[Interface]:
    """The interfaces of one file. Raises ValueError for a member that is not described."""
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(path.read_text(), ElementTree.XMLParser(target=builder))
    for comment, element in _described(root):
        if element.tag == "interface":
            name = element.attrib["name"]
            _, _, description = _parts(comment, path, name)
            members = tuple(
                _member(path, words, one) for words, one in _described(element)
            )
            yield Interface(name, description, members)


def _described(parent: ElementTree.Element) -> Iterator[tuple[str, ElementTree.Element]]:
    """Each element with the comment before it."""
    comment = ""
    for child in parent:
        if child.tag is ElementTree.Comment:
            comment = child.text or ""
        else:
            if child.tag != "annotation":
                yield comment, child
            comment = ""


def _member(path: Path, comment: str, element: ElementTree.Element) -> Member:
    name = element.attrib["name"]
    _, arguments, description = _parts(comment, path, name)
    return Member(element.tag, name, _declaration(element), arguments, description)


def _declaration(element: ElementTree.Element) -> str:
    name = element.attrib["name"]
    if element.tag == "property":
        return f"{element.attrib['access']} {element.attrib['type']} {name}"
    takes, gives = [], []
    for argument in element.iter("arg"):
        words = f"{argument.attrib['type']} {argument.attrib['name']}"
        direction = argument.attrib.get("direction", DIRECTIONS[element.tag])
        (gives if direction == "out" and element.tag == "method" else takes).append(words)
    result = f" -> ({', '.join(gives)})" if gives else ""
    return f"{name}({', '.join(takes)}){result}"


def _parts(comment: str, path: Path, name: str) -> tuple[str, tuple[tuple[str, str], ...], str]:
    """Title, arguments and description of a comment."""
    blocks = ["\n".join(line.strip() for line in block.splitlines())
              for block in comment.replace("\r", "").strip().split("\n\n")]
    blocks = [block.strip() for block in blocks]
    title, _, rest = blocks[0].partition(":")
    if title != name:
        raise ValueError(f"{path}: no comment describes {name}")
    arguments: list[tuple[str, str]] = []
    for line in rest.strip().splitlines():
        if line.startswith("@"):
            argument, _, words = line[1:].partition(":")
            arguments.append((argument, words.strip()))
        elif arguments:
            last, words = arguments[-1]
            arguments[-1] = (last, f"{words} {line}")
    if arguments:
        return title, tuple(arguments), "\n\n".join(blocks[1:])
    return title, (), "\n\n".join([rest.strip(), *blocks[1:]]).strip()
