# SPDX-License-Identifier: Apache-2.0
"""What --help teaches, what Tab offers, and how little is loaded for it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared.cli.completion import SHELLS
from nvshared.cli.parser import build
from nvshared.cli.verb import Verb
from nvshared.cli.verbs import VERBS
from nvshared.errors import InvalidArgs

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"

OPTIONS = {"-h", "--help", "--version", "--bus", "--json", "-T", "--set-tq", "-S", "--anti-thrash"}
COMMANDS = {"bash"}                     # among others
FILES = {"README.md", "nvshared"}       # among others


def nvsharectl(*arguments: str) -> str:
    """What it prints."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, text=True, check=True,
        capture_output=True,
    ).stdout


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_of_a_verb(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build(VERBS).parse_args([verb.name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for command, what in verb.examples:
        assert command in shown
        assert what in shown
    assert verb.examples
    assert "--json" in shown


@pytest.mark.parametrize("verb", [None, *VERBS], ids=lambda verb: verb.name if verb else "none")
def test_help_fits_a_terminal(
    verb: Verb | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        build(VERBS).parse_args([*([verb.name] if verb else []), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    if verb is None:
        for one in VERBS:               # a line each
            assert any(line.split(None, 1) == [one.name, one.summary] for line in lines)


def test_help_lists_every_verb() -> None:
    shown = nvsharectl("--help")
    for verb in VERBS:
        assert f"    {verb.name} " in shown


def test_examples_are_commands_that_parse() -> None:
    parser = build(VERBS)
    for verb in VERBS:
        for command, _ in verb.examples:
            words = command.split(">")[0].split("|")[0].split()
            if words[0] == "nvsharectl":
                assert parser.parse_args(words[1:]).verb is verb


def test_what_stands_before_the_verb_counts() -> None:
    parser = build(VERBS)
    for line in ("--bus session --json status", "status --bus session --json"):
        options = parser.parse_args(line.split())
        assert (options.bus, options.json) == ("session", True)


def test_no_abbreviations() -> None:
    """An option that is added later must not change what a script says today."""
    with pytest.raises(InvalidArgs):
        build(VERBS).parse_args(["--js"])


@pytest.mark.parametrize("arguments", [["--help"], ["--bus", "unix:path=/no", "status"]])
def test_what_takes_long_to_load_is_not_loaded(arguments: list[str]) -> None:
    heavy = ["asyncio", "dbus_next", "rich", "importlib.metadata", "nvshared.manager"]
    program = (
        "import sys\nfrom nvshared.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print('loaded', *[one for one in {heavy!r} if one in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run(
        # -S: what an installation loads by itself is not our doing.
        [sys.executable, "-S", "-c", program], cwd=ROOT, text=True, check=True,
        capture_output=True,
    )
    assert ended.stderr.splitlines()[-1] == "loaded"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sta", {"status"}),
        ("anti-thrash ", {"auto", "on", "off", "--gpu", "--bus", "--json", "-h", "--help"}),
        ("--json completion ", {*SHELLS, "-h", "--help", "--bus", "--json"}),
        ("set-tq --g", {"--gpu"}),
        ("set-tq a", {"auto"}),
        ("--ver", {"--version"}),
        ("-S ", {"auto", "on", "off"}),
        ("-T ", {"auto"}),
        ("--anti-thrash = o", {"on", "off"}),       # as bash parts it
        ("--bus ", {"system", "session"}),
        ("--bus status ", {verb.name for verb in VERBS} | OPTIONS),
        ("status --bus s", {"system", "session"}),
        ("clients --gpu ", set()),
        ("limit --memory -", set()),
        ("weight --gpu 0 --b", {"--bus"}),
        ("-T 5 weig", {"weight"}),
        ("preload --root pyproj", {"pyproject.toml"}),
        ("run --so", {"--socket"}),
        ("run --socket pyproj", {"pyproject.toml"}),
        ("run bas", COMMANDS),
        ("run -- bas", COMMANDS),
        ("run --json -- bas", COMMANDS),
        ("run -- python --", set()),
        ("run python --gpu ", FILES),
        ("run -- python pyproj", {"pyproject.toml"}),
        ("run -- python -S ", FILES),
    ],
)
def test_tab_in_bash(line: str, offered: set[str]) -> None:
    words = ["nvsharectl", *line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        nvsharectl("completion", "bash")
        + f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _nvsharectl\n"
        + 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    ended = subprocess.run(
        ["bash"], input=script, text=True, check=True, capture_output=True, cwd=ROOT,
    )
    shown = set(ended.stdout.split())
    assert shown >= offered if offered in (COMMANDS, FILES) else shown == offered
    assert "--json" not in shown or "--json" in offered
    assert ended.stderr == ""


@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish on this machine")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("anti-thrash o", {"on", "off"}),
        ("set-tq a", {"auto"}),
        ("-S ", {"auto", "on", "off"}),
        ("-T ", {"auto"}),
        ("--bus s", {"system", "session"}),
        ("clients --gpu ", set()),
    ],
)
def test_tab_in_fish(line: str, offered: set[str]) -> None:
    script = nvsharectl("completion", "fish") + f"\ncomplete --do-complete 'nvsharectl {line}'\n"
    ended = subprocess.run(
        ["fish", "--no-config"], input=script, text=True, check=True, capture_output=True
    )
    shown = {found.partition("\t")[0] for found in ended.stdout.splitlines()}
    assert (shown, ended.stderr) == (offered, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_a_script(shell: str) -> None:
    script = nvsharectl("completion", shell)
    for verb in VERBS:
        assert verb.name in script
    if shutil.which(shell):
        ended = subprocess.run(
            [shell, "-n"], input=script, text=True, check=False, capture_output=True
        )
        assert (ended.returncode, ended.stderr) == (0, "")
