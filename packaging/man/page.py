# SPDX-License-Identifier: Apache-2.0
"""Completes a manual page: page.py TEMPLATE VERSION LIBRARY, the page on standard output.

A template is man(7) source. A line @WORD@ in it is replaced by what the program
itself knows, so that it cannot be out of date: the settings, the options, the
verbs, the members on the bus, the metrics. @VERSION@, @DATE@ and @LIBRARY@, the path of
libnvshare.so, may stand anywhere.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path

import members
import roff

from nvshared.cli.main import VERBS, build
from nvshared.kubelet import options as kubelet_options
from nvshared.kubelet.claims import PREFIX
from nvshared.report.families import families
from nvshared.settings import config
from nvshared.terms import TERMS

INTERFACES = Path(__file__).parents[2] / "dbus"
CLIENT = Path(__file__).with_name("client.py")
ORDER = ("com.nvshare.Manager", "com.nvshare.GPU", "com.nvshare.GPU.Statistics",
         "com.nvshare.Client")
HEADINGS = {"method": "Methods", "property": "Properties", "signal": "Signals"}


def settings() -> list[str]:
    """What may stand in the file, by section."""
    lines: list[str] = []
    section = ""
    for option in config.options():
        if option.section != section:
            section = option.section
            lines.append(f".SS [{section}]")
        value = option.metavar or "on|off"
        words = _sentence(option.help) + f" Default: {option.default}."
        if option.variable:
            takes = f", {option.variable_words}," if option.variable_words else ""
            words += f" The environment variable {option.variable}{takes} wins over files."
        lines += roff.item(f"{option.name} = {value}", words)
    return lines


def terms() -> list[str]:
    """What a rule for tenants may set."""
    return [line for name, term in TERMS.items() for line in roff.item(
        f"{name} = {term.unit.metavar}" + ("|none" if term.none else ""), _sentence(term.help))]


def annotations() -> list[str]:
    """What pods may have."""
    return [line for term in TERMS.values() if term.annotation for line in roff.item(
        f"{PREFIX}{term.annotation} = {term.unit.metavar}", _sentence(term.help))]


def verbs() -> list[str]:
    """Everything nvsharectl does."""
    parser = build(VERBS)
    lines: list[str] = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for verb in VERBS:
            one = action.choices[verb.name]
            usage = " ".join(one.format_usage().removeprefix("usage: ").split())
            usage = usage.replace(" [-h]", "").replace(" [--bus BUS]", "").replace(" [--json]", "")
            lines += [f'.SS "{roff.escaped(usage)}"', *roff.paragraphs(verb.description)]
            lines += _options(one, without=("--help", "--bus", "--json"))
            for command, what in verb.examples:
                lines += roff.example(what[0].upper() + what[1:] + ":", command)
            if verb.more:
                lines += roff.verbatim(verb.more)
    return lines


def bus() -> list[str]:
    """The interfaces with all their members."""
    lines: list[str] = []
    for name in ORDER:
        for interface in members.read(INTERFACES / f"{name}.xml"):
            lines.append(f'.SH "INTERFACE {interface.name}"')
            lines += roff.paragraphs(_sentence(interface.description))
            for kind, heading in HEADINGS.items():
                chosen = [one for one in interface.members if one.kind == kind]
                if chosen:
                    lines.append(f".SS {heading}")
                for one in chosen:
                    lines += _member(one)
    return lines


def metrics() -> list[str]:
    """What the daemon tells Prometheus."""
    return [line for name, family in families().items()
            for line in roff.item(name, _sentence(family.documentation))]


def client() -> list[str]:
    """A program that uses the interface; the tests run it."""
    return roff.verbatim(CLIENT.read_text())


def _member(member: members.Member) -> list[str]:
    lines = roff.item(member.declaration, member.description)
    for name, words in member.arguments:
        lines += [".RS", *roff.item(name, words), ".RE"]
    return lines


def _options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> list[str]:
    lines: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        if any(name in without for name in action.option_strings):
            continue
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest}"
        if not action.option_strings:
            value = value.strip()
        term = ", ".join(action.option_strings) + value
        words = (action.help or "").replace("%%", "%")
        lines += roff.item(term, _sentence(words, tuple(action.choices or ())))
    return lines


def _sentence(text: str, choices: Container[str] = ()) -> str:
    """With a capital and a full stop; but what is typed, and a file's name, stay as they are."""
    first = text.partition(" ")[0].rstrip(",:;")
    start = text[:1] if first in choices or "." in first else text[:1].upper()
    return start + text[1:] + ("" if text.endswith(".") else ".")


GENERATED: dict[str, Callable[[], list[str]]] = {
    "@SETTINGS@": settings, "@TERMS@": terms, "@ANNOTATIONS@": annotations, "@VERBS@": verbs,
    "@BUS@": bus, "@CLIENT@": client, "@METRICS@": metrics,
    "@OPTIONS@": lambda: _options(config.parser()),
    "@EVERYWHERE@": lambda: _options(build(VERBS)),
    "@KUBELET@": lambda: _options(kubelet_options.parser()),
}


def completed(template: Path, version: str, library: str) -> str:
    """The page."""
    now = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    lines: list[str] = []
    for line in template.read_text().splitlines():
        generate = GENERATED.get(line)
        lines += generate() if generate else [line]
    text = "\n".join(lines).replace("@VERSION@", version).replace("@LIBRARY@", library)
    return text.replace("@DATE@", time.strftime("%Y-%m-%d", now)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(completed(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
