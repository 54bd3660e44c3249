# SPDX-License-Identifier: Apache-2.0
"""Writes what is made from the table of messages in nvshared/hook/protocol.py.

    python -m libhook.messages

writes libhook/include/nvshare/messages.h and the tables in docs/internals/connections.md. A test
compares.
"""

import textwrap
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from nvshared.hook import packets, protocol
from nvshared.hook.packets import Place, places
from nvshared.hook.protocol import OLDEST, OrderRecord, ReportRecord, Row, Type, rows
from nvshared.scheduler.events import PinReason

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "libhook" / "include" / "nvshare" / "messages.h"
PAGE = ROOT / "docs" / "internals" / "connections.md"
BEGIN, END = "<!-- messages: made by make -C libhook protocol -->", "<!-- end of messages -->"
GROUPS = {
    "limits": "bytes", "memory": "the client's memory in bytes when the report is sent; whole "
    "blocks count in `allocated`, `resident` and `pinned`", "terms": "the terms with which the "
    "program wants to run; 0: not given. The daemon applies each unless the administrator's is "
    "stricter",
}
WIDTH = 100
HEAD = """\
/* At the beginning of each packet. `type` and `version` are there in every version. */
struct nvshare_head {
    uint16_t type;
    uint16_t version;
    uint32_t flags;
    uint64_t number;
    uint32_t length;                 /* of the packet, in bytes */
    uint32_t spare;
};
"""


def _comment(text: str, indent: str = "    ") -> str:
    lines = textwrap.wrap(text, WIDTH - len(indent) - 6)
    return indent + "/* " + f"\n{indent} * ".join(lines) + " */"


def _enumeration(name: str, prefix: str, members: Iterable[Any]) -> str:
    lines = [f"enum nvshare_{name} {{"]
    for one in members:
        lines.append(_comment(one.words if isinstance(one, PinReason) else one.text))
        value = f"1 << {one.bit_length() - 1}" if isinstance(one, IntFlag) else int(one)
        lines.append(f"    NVSHARE_{prefix}{one.name} = {value},")
    return "\n".join([*lines, "};"])


def _member(row: Row) -> str:
    """The declaration of a field, with its comment."""
    name = row.member.rpartition(".")[2]
    kinds = "" if row.group else ", ".join(_messages(row)) + ": "
    unit = f" ({row.unit})" if row.unit not in ("", "UUID", "UTF-8") else ""
    return _comment(f"{kinds}{row.text}{unit}") + f"\n    {row.kind.c.format(name)};"


def _messages(row: Row) -> list[str]:
    names = [one.name for one in row.places]
    every = [one.name for one in Type if not one.is_order]
    left = [name for name in every if name not in names]
    return [f"all but {' and '.join(left)}"] if len(names) > len(every) // 2 else names


def _structs(name: str, record: type[Any], direction: str) -> str:
    found, members, groups = [], [], []
    for row in rows(record):
        if row.group and row.group not in groups:
            groups.append(row.group)
            each = [_member(one) for one in rows(record) if one.group == row.group]
            found.append(_comment(GROUPS[row.group], "") + f"\nstruct nvshare_{row.group} {{\n"
                         + "\n".join(each) + "\n};\n")
            members.append(f"    struct nvshare_{row.group} {row.group};")
        elif not row.group:
            members.append(_member(row))
    found.append(_comment(f"{direction}. A field that the message has not is 0.", "")
                 + f"\nstruct nvshare_{name} {{\n"
                 "    uint16_t type;                   /* enum nvshare_type */\n"
                 "    uint16_t version;                /* of the packet */\n"
                 "    uint32_t flags;                  /* enum nvshare_flag */\n"
                 "    uint64_t number;                 /* pairs an order or a request with its "
                 "answer */\n" + "\n".join(members) + "\n};\n")
    return "\n".join(found)


def _fields(name: str, kinds: Iterable[Type]) -> str:
    lines = [f"#define NVSHARE_{name}_FIELDS(FIELD)"]
    for kind in kinds:
        old = {row.name: (offset, size) for offset, size, row in places(kind, OLDEST)}
        for offset, _, row in places(kind):
            was = ", ".join(map(str, old.get(row.name, (0, 0))))
            lines.append(f"    FIELD({kind.name}, {row.member}, {offset}, {was})")
    return " \\\n".join(lines) + "\n"


def header() -> str:
    enumerations: list[tuple[str, str, type[IntEnum | IntFlag]]] = [
        ("type", "", Type), ("flag", "", protocol.Flag), ("refusal", "REFUSED_", protocol.Refusal),
        ("wait", "WAITS_", protocol.Wait), ("park", "PARK_", protocol.Park),
        ("pin_reason", "PIN_", PinReason)]
    return "\n".join([
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Made from nvshared/hook/protocol.py by `make -C libhook protocol`: do not edit. */",
        "#pragma once\n", "#include <stdint.h>\n",
        f"#define NVSHARE_PROTOCOL_VERSION {protocol.VERSION}",
        f"#define NVSHARE_PROTOCOL_OLDEST {OLDEST}\n",
        f"#define NVSHARE_PACKET_OLDEST {packets.SIZE}        /* bytes of a packet of version 2 */",
        f"#define NVSHARE_PACKET_LONGEST {packets.LONGEST}",
        f"#define NVSHARE_PACKET_SPARE {packets.SPARE}          /* bytes after the last field */\n",
        HEAD,
        *(_enumeration(*one) + "\n" for one in enumerations),
        _structs("order", OrderRecord, "Daemon to hook"),
        _structs("report", ReportRecord, "Hook to daemon"),
        "/* FIELD(message, member, offset in a packet of the newest version, then offset and\n"
        " * bytes in version 2; 0 bytes: not there). */",
        _fields("ORDER", [one for one in Type if one.is_order]),
        _fields("REPORT", [one for one in Type if not one.is_order])])


COLUMNS = ["| field | unit | byte | in version 2 | meaning |", "| --- | --- | --- | --- | --- |"]


def _line(kind: Type, place: Place) -> str:
    offset, _, row = place
    was = row.places[kind]
    return (f"| `{row.member}` | {row.unit} | {offset} | {was[0] if was else 'not there'} "
            f"| {row.text} |")


def _rows_of(kind: Type) -> str:
    lines = [f"**{kind.name}** ({int(kind)}). {kind.text}\n"]
    if found := [one for one in places(kind)
                 if one.row.text and not one.row.name.startswith("memory.")]:
        lines += [*COLUMNS, *(_line(kind, place) for place in found), ""]
    return "\n".join(lines)


def tables() -> str:
    """The tables of docs/internals/connections.md."""
    orders = [_rows_of(one) for one in Type if one.is_order]
    reports = [_rows_of(one) for one in Type if not one.is_order]
    figures = [*COLUMNS, *(_line(Type.MEMORY, place) for place in places(Type.MEMORY)
                           if place.row.name.startswith("memory."))]
    flags = ["| flag | bit | meaning |", "| --- | --- | --- |"]
    flags += [f"| {one.name} | {one.bit_length() - 1} | {one.text} |" for one in protocol.Flag]
    return "\n".join([
        BEGIN, "\n### Orders, daemon to hook\n", *orders, "### Reports, hook to daemon\n", *reports,
        "### Figures, in every report but NAME and GANG\n", *figures,
        "\n`answered` and `to_pin` are in no HELLO and no BORROWED.\n", "### Flags\n", *flags, "",
        END])


def page() -> str:
    """docs/internals/connections.md with its tables made anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + tables() + rest.partition(END)[2]


def main() -> None:
    HEADER.write_text(header())
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
