# SPDX-License-Identifier: Apache-2.0
"""Completion by Tab in bash and, where it is installed, fish."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nvshared.cli.main import SHELLS, VERBS

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"

NAMES = {verb.name for verb in VERBS}
COMMON = {"-h", "--help", "--bus", "--json"}
OWN = COMMON | {"--version", "-T", "--set-tq", "-S", "--anti-thrash"}

# By shell: code that reads the completion script from stdin and prints completions of the line in
# its argument. The code for bash sets the variables that bash sets when a user presses Tab.
SHELL = {
    "bash": """. /dev/stdin; COMP_TYPE=9 COMP_WORDBREAKS=$' \\t\\n"><=;|&(:'"'"
        COMP_LINE="nvsharectl $1" COMP_POINT=$((11 + ${#1}))
        _python_argcomplete nvsharectl; printf '%s\\n' "${COMPREPLY[@]}" """,
    "fish": "source -; complete --do-complete $argv[1]",
}


@cache
def script(shell: str) -> str:
    return subprocess.run([sys.executable, "-c", PROGRAM, "completion", shell], cwd=ROOT, text=True,
                          check=True, capture_output=True).stdout


@pytest.fixture(scope="module", autouse=True)
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A PATH with nvsharectl, which the completion scripts run."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nvsharectl").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    (folder / "nvsharectl").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("NVSHARE_BUS", f"unix:path={folder}/none")     # not the machine's nvshared
        yield


@pytest.fixture(params=SHELL)
def shell(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"there is no {request.param} on this machine")
    return str(request.param)


def tab(shell: str, line: str) -> set[str]:
    """The completions after `nvsharectl` and this line, which has no quotes."""
    command = {"bash": ["bash", "-c", SHELL["bash"], "bash", line],
               "fish": ["fish", "--no-config", "-c", SHELL["fish"], f"nvsharectl {line}"]}[shell]
    ended = subprocess.run(command, cwd=ROOT, text=True, check=True, capture_output=True,
                           input=script(shell))
    assert ended.stderr == ""
    return {found.partition("\t")[0].strip() for found in ended.stdout.splitlines()} - {""}


def test_completion_script_is_printed_for_each_shell() -> None:
    assert all("nvsharectl" in script(shell) for shell in SHELLS)


@pytest.mark.parametrize(("line", "offered"), [
    ("set-tq a", {"auto"}), ("-S ", {"auto", "on", "off"}), ("-T5 weig", {"weight"}),
    ("--bus=unix:path=/x anti-thrash o", {"on", "off"}), ("status --bus run s", set()),
    ("clients --gpu ", set()), ("help dr", {"drain"}), ("run --priority b", {"background"}),
    ("preload --root pyproj", {"pyproject.toml"}),
    ("preload --root on s", {"status"}), ("run --socket on --js", {"--json"}),
    ("run -- status --js", set()), ("run -- head --bus s", {"setup.py", "systemd"}),
    ("--bus=", {"system", "session"}), ("--bus=unix:s", set()),
    ("preload --root=pyproj", {"pyproject.toml"}),
])
def test_completion_of_a_partial_word_offers_matching_words(
        shell: str, line: str, offered: set[str]) -> None:
    """fish puts the option before each value that follows an equals sign."""
    option = line.split()[-1].partition("=")[0] if line[-1] != " " else ""
    found = {one.rstrip("/").removeprefix(f"{option}=") for one in tab(shell, line)}
    assert found - {option} == offered


def test_completion_after_run_offers_programs(shell: str) -> None:
    assert "bash" in tab(shell, "run --json -- bas")


def test_completion_of_an_empty_word_offers_values_and_in_bash_options(shell: str) -> None:
    """bash offers options too; fish offers them only after a dash."""
    more = shell == "bash"
    assert tab(shell, "--bus status ") == NAMES | (OWN if more else set())
    assert tab(shell, "anti-thrash ") == {"auto", "on", "off"} | (
        COMMON | {"--gpu"} if more else set())
