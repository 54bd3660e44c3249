# SPDX-License-Identifier: Apache-2.0
"""Writes README.md, docs/ and their images as packages install them: documents.py FOLDER.

FOLDER becomes /usr/share/doc/nvshared. Links to files that packages install elsewhere lead there. A
link to another file of the source becomes text with that file's name, as packages do not have it.
"""

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A folder of the source, and where packages install it, seen from FOLDER.
ELSEWHERE = {
    "packaging/examples": "examples",
    "packaging/grafana": "../../nvshared/grafana",
    "packaging/prometheus": "../../nvshared/prometheus",
}
# Evidence of a figure: its name would be longer than the figure.
RESULTS = re.compile(r" \(\[results\]\([^)\s]*bench/results/[^)\s]*\)\)")
IMAGE = re.compile(r"!\[[^]]*\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)\s]+)\)")


def installed(page: Path) -> str:
    """The text of a page, a path below ROOT, with the links as in FOLDER."""
    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        path = Path(os.path.normpath(page.parent / (target.partition("#")[0] or page.name)))
        if ":" in target or path.parts[0] in ("README.md", "docs"):
            return match[0]
        for source, folder in ELSEWHERE.items():
            if path.is_relative_to(source):
                there = Path(folder, path.relative_to(source))
                return f"[{words}]({os.path.relpath(there, page.parent)})"
        return words if path.name.partition(".")[0] in words else f"{words} (`{path}`)"

    return LINK.sub(link, RESULTS.sub("", (ROOT / page).read_text()))


def write(folder: Path) -> None:
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        page = path.relative_to(ROOT)
        text, target = installed(page), folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        for image in IMAGE.findall(text):
            (target.parent / image).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path.parent / image, target.parent / image)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
