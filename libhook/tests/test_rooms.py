# SPDX-License-Identifier: Apache-2.0
"""Which uses between rooms the check reports, and which it permits."""

import subprocess
from pathlib import Path

import pytest

from libhook.tests.rooms import Rooms

FILES = {
    "above/a.h": "void a(void);\nextern int shown;\n",
    "above/a.c": '#include "above/a.h"\n#include "below/b.h"\nint shown;\nvoid a(void) { b(); }\n',
    "below/b.h": "void b(void);\n",
    "below/b.c": '#include "b.h"\nvoid b(void) { }\n',
}


def made(folder: Path, exceptions: dict[str, str] | None = None, **changed: str) -> Rooms:
    """The rooms of FILES; a keyword such as b_c replaces the text of the file b/c."""
    texts = FILES | {f"below/{name.replace('_', '.')}": text for name, text in changed.items()}
    source, build = folder / "source", folder / "build"
    for name, text in texts.items():
        for path in (source / name, build / name):
            path.parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    for path in source.rglob("*.c"):
        target = build / path.relative_to(source).with_suffix(".o")
        subprocess.run(["gcc", "-c", f"-I{source}", path, "-o", target], check=True)
    return Rooms(["above", "below"], sources=source, objects=build, exceptions=exceptions)


def test_layer_check_allows_a_dependency_on_a_lower_folder(tmp_path: Path) -> None:
    rooms = made(tmp_path)
    assert rooms.uses == {"above/a": {"below/b": {"b", "below/b.h"}}, "below/b": {}}
    assert (rooms.upward(), rooms.circles(), rooms.homeless()) == ([], [], [])


@pytest.mark.parametrize(("text", "how"), [
    ('#include "above/a.h"\nvoid b(void) { }\n', "above/a.h"),
    ('#include "../above/a.h"\nvoid b(void) { }\n', "../above/a.h"),
    ("void a(void);\nvoid b(void) { a(); }\n", "a"),
    ("extern int shown;\nint b(void) { return shown; }\n", "shown"),
])
def test_layer_check_reports_a_file_that_depends_on_a_higher_folder_unless_it_is_an_exception(
    tmp_path: Path, text: str, how: str
) -> None:
    rooms = made(tmp_path, b_c=text)
    assert rooms.upward() == [f"below/b -> above/a: {how}"]
    assert rooms.circles() == [["above/a", "below/b"]]
    rooms = made(tmp_path, {"below/b": "why"}, b_c=text)
    assert (rooms.upward(), rooms.circles()) == ([], [])


def test_layer_check_reports_a_dependency_cycle_within_a_folder(tmp_path: Path) -> None:
    rooms = made(
        tmp_path, b_c="void c(void);\nvoid b(void) { c(); }\n",
        c_c="void b(void);\nvoid c(void) { b(); }\n")
    assert (rooms.upward(), rooms.circles()) == ([], [["below/b", "below/c"]])


def test_layer_check_reports_a_source_file_without_a_listed_folder_or_object(
    tmp_path: Path
) -> None:
    made(tmp_path)
    (tmp_path / "source" / "stray.c").touch()
    rooms = Rooms(
        ["above", "below", "none"], sources=tmp_path / "source", objects=tmp_path / "build")
    assert rooms.homeless() == ["none", "stray"]
    with pytest.raises(FileNotFoundError, match=r"stray\.o is not built"):
        rooms.upward()
