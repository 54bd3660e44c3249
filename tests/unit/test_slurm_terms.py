# SPDX-License-Identifier: Apache-2.0
"""The SLURM plugin for sbatch (in C) and nvshared (in Python) accept the same terms."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.quantity import UNITS, limit, share, weight
from nvshared.terms import TERMS

SOURCE = Path(__file__).parents[2] / "packaging/slurm/terms.c"
COUNT = 5                               # number of terms in terms.h
PARSED: dict[str, tuple[str, Callable[[str], int]]] = {
    "memory": ("memory-limit", limit), "host-memory": ("host-memory-limit", limit),
    "compute": ("compute-limit", share), "weight": ("weight", weight),
}


class Terms(ctypes.Structure):
    _fields_ = [("given", ctypes.c_bool * COUNT), ("value", ctypes.c_uint64 * COUNT)]


Parse = Callable[[str], dict[str, int] | str]


@pytest.fixture(scope="module")
def parse(tmp_path_factory: pytest.TempPathFactory) -> Parse:
    """The plugin's result for a text: terms by their names on the bus, or the error."""
    built = tmp_path_factory.mktemp("slurm") / "terms.so"
    subprocess.run(
        ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
         "-o", built, SOURCE], check=True)
    library = ctypes.CDLL(str(built))
    library.terms_parse.restype = ctypes.c_bool
    in_c = (ctypes.c_char_p * COUNT).in_dll(library, "term_on_the_bus")
    names = [(name or b"").decode() for name in in_c]

    def parsed(text: str) -> dict[str, int] | str:
        terms, wrong = Terms(), ctypes.create_string_buffer(256)
        if not library.terms_parse(text.encode(), ctypes.byref(terms), wrong, len(wrong)):
            return wrong.value.decode(errors="replace")
        values = zip(names, terms.given, terms.value, strict=True)
        return {name: value for name, there, value in values if there}

    return parsed


def test_slurm_terms_are_parsed_to_names_and_values_of_the_dbus_interface(parse: Parse) -> None:
    found = parse("memory=1.5G,host-memory=none,compute=50%,weight=200,priority=background")
    assert found == {"memory-limit": 3 << 29, "host-memory-limit": 0, "compute-limit": 50,
                     "weight": 200, "priority": 1}
    assert set(found) <= set(TERMS)
    assert parse("") == {}


@given(
    name=st.sampled_from([*PARSED]),
    text=st.one_of(st.from_regex(r"[0-9]{1,17}(\.[0-9]{0,17})?", fullmatch=True),
                   st.integers(0, 2000).map(str), st.text("0123456789.%eExXkKiIbB-+", max_size=6)),
    unit=st.sampled_from([*UNITS, "%", "GIB", "Kb", "x"]),
)
def test_slurm_terms_parse_numbers_like_the_daemon(parse: Parse, name: str, text: str,
                                                   unit: str) -> None:
    term, python = PARSED[name]
    try:
        expected: dict[str, int] | None = {term: python(text + unit)}
    except ValueError:
        expected = None
    found = parse(f"{name}={text}{unit}")
    assert found == expected if expected else isinstance(found, str)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300))
def test_slurm_terms_parse_any_text_without_a_crash(parse: Parse, text: str) -> None:
    found = parse(text)
    assert isinstance(found, str) or text == "" or "=" in text
