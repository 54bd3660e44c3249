# SPDX-License-Identifier: Apache-2.0
"""The content of --help, and the modules that it loads."""

import subprocess
import sys
from pathlib import Path

import pytest

from nvshared.cli.main import VERBS, build
from nvshared.cli.verb import Verb
from nvshared.errors import InvalidArgs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", [None, *VERBS], ids=lambda verb: verb.name if verb else "none")
def test_help_fits_80_columns_and_shows_all_verbs_or_examples(
    verb: Verb | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        build(VERBS).parse_args([*([verb.name] if verb else []), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert "--json" in shown
    if verb is None:
        for one in VERBS:               # --help has a line for each verb
            assert any(line.split(None, 1) == [one.name, one.summary] for line in lines)
    else:
        assert verb.description.split()[0] in shown
        assert verb.examples
        assert all(word in shown for example in verb.examples for word in example)


def test_examples_in_help_texts_are_commands_that_parse() -> None:
    parser = build(VERBS)
    for verb in VERBS:
        for command, _ in verb.examples:
            words = command.split(">")[0].split("|")[0].split()
            if words[0] == "nvsharectl":
                assert parser.parse_args(words[1:]).verb is verb


def test_common_options_are_parsed_before_and_after_the_verb() -> None:
    parser = build(VERBS)
    for line in ("--bus session --json status", "status --bus session --json"):
        options = parser.parse_args(line.split())
        assert (options.bus, options.json) == ("session", True)
    with pytest.raises(InvalidArgs):    # an abbreviation: a later option could change its meaning
        parser.parse_args(["--js"])


@pytest.mark.parametrize("arguments", [
    ["--help"], ["--bus", "unix:path=/no", "status"], ["--bus", "unix:path=/no", "top", "--json"],
])
def test_nvsharectl_imports_slow_modules_only_when_needed(arguments: list[str]) -> None:
    heavy = [
        "argcomplete", "asyncio", "dataclasses", "dbus_next", "importlib.metadata", "rich",
        "nvshared.sharing.manager"]
    program = (
        "import sys\nfrom nvshared.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print('loaded', *[one for one in {heavy!r} if one in sys.modules], file=sys.stderr)")
    ended = subprocess.run(
        # -S: without modules that the Python installation loads.
        [sys.executable, "-S", "-c", program], cwd=ROOT, text=True, check=True,
        capture_output=True)
    assert ended.stderr.splitlines()[-1] == "loaded"
