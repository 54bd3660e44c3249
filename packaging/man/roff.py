# SPDX-License-Identifier: Apache-2.0
"""Plain text as man(7) source."""

def escaped(text: str) -> str:
    """Text that troff prints as it is; a hyphen as one that can be copied into a terminal."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    text = text.replace("…", "...").replace("\N{EN DASH}", r"\(en").replace("'", r"\(aq")
    text = text.replace("`", r"\(ga")
    text = "".join(one if one.isascii() else rf"\[u{ord(one):04X}]" for one in text)
    return "\n".join(r"\&" + line if line.startswith((".", "'")) else line
                     for line in text.split("\n"))


def paragraphs(text: str) -> list[str]:
    """Text below a heading; blank lines part paragraphs, line breaks within them mean nothing."""
    lines: list[str] = []
    for block in text.strip().split("\n\n"):
        lines += [".PP", escaped(" ".join(block.split()))]
    return lines[1:]


def example(what: str, command: str) -> list[str]:
    """A sentence, and below it a command as it is typed."""
    return [".PP", escaped(what), ".PP", ".RS 4", ".EX", escaped(command), ".EE", ".RE"]


def verbatim(text: str) -> list[str]:
    """Lines as they stand."""
    return [".PP", ".EX", escaped(text.rstrip("\n")), ".EE"]


def item(term: str, text: str) -> list[str]:
    """A term in bold and what it means, indented."""
    blocks = text.strip().split("\n\n")
    lines = [".TP", rf"\fB{escaped(term)}\fR", escaped(" ".join(blocks[0].split()))]
    for block in blocks[1:]:
        lines += [".IP", escaped(" ".join(block.split()))]
    return lines
