# SPDX-License-Identifier: Apache-2.0
"""The words of ARCHITECTURE.md: identifiers use each of them, and no synonym that it replaced."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Former words of the project, by the word of the table that took their place.
REPLACED = {
    "presave": "writeback", "belief": "evidence", "tally": "virtual time",
    "parcel": "block", "telling": "pace",
}
NOT_CODE = re.compile(r'"""[\s\S]*?"""|/\*[\s\S]*?\*/|"[^"\n]*"|#[^\n]*|//[^\n]*')


def words() -> list[str]:
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Words\n")[2]
    rows = re.findall(r"^\| ([a-z][a-z -]*) \| \S.* \|$", table, re.MULTILINE)
    return rows[1:]                     # without the heading


def identifiers() -> set[str]:
    """The words in names of Python and C, in small letters, joined as they stand."""
    files = [*(ROOT / "nvshared").rglob("*.py"), *(ROOT / "libhook/src").rglob("*.[ch]")]
    code = (NOT_CODE.sub(" ", path.read_text()) for path in files)
    names = {name for text in code for name in re.findall(r"[A-Za-z_]\w+", text)}
    return {name.lower().replace("_", "") for name in names}


def test_words_of_the_architecture_are_sorted_and_used_by_identifiers() -> None:
    found = words()
    assert len(found) > 50
    plain = [re.sub("[ -]", "", word) for word in found]
    assert plain == sorted(set(plain))
    text = " ".join(identifiers())
    assert [word for word in plain if word not in text] == []


def test_class_name_when_the_whole_product_is_read_belongs_to_one_class() -> None:
    names = [name for path in (ROOT / "nvshared").rglob("*.py")
             for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)]
    assert [name for name, number in Counter(names).items() if number > 1] == []


def test_identifiers_use_no_word_that_another_replaced() -> None:
    assert set(REPLACED.values()) <= set(words())
    used = identifiers()
    assert [(old, name) for old in REPLACED for name in used if old in name] == []
