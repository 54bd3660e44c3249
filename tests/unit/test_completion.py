# SPDX-License-Identifier: Apache-2.0
"""Completion by Tab in bash, zsh and fish, where they are installed."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from nvshared.cli.completion import SHELLS
from nvshared.cli.main import VERBS

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
BEGIN, END = b"<BEG" + b"IN>", b"<E" + b"ND>"
CLEAR = b"\x15"                         # Ctrl-U

NAMES = {verb.name for verb in VERBS}
COMMON = {"-h", "--help", "--bus", "--json"}
OWN = COMMON | {"--version", "-T", "--set-tq", "-S", "--anti-thrash"}

BASH = r"""
PS1=
shown() {
    _python_argcomplete nvsharectl
    printf '\n<BEG''IN>\n'
    printf '%s\n' "${COMPREPLY[@]}"
    printf '<E''ND>\n'
}
complete -F shown nvsharectl
printf '<E''ND>\n'
"""
ZSH = r"""
PROMPT=
bindkey -e
compadd() {
    local -a offered
    builtin compadd -O offered "$@"
    (($#offered)) && print -rl -- $offered
    builtin compadd "$@"
}
shown() {
    print -r -- $'\n<BEG''IN>'
    zle complete-word
    print -r -- $'\n<E''ND>'
}
zle -N shown
bindkey '^I' shown
print -r -- '<E''ND>'
"""

Tab = Callable[[str], set[str]]


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
        yield


class Typist:
    """A shell at a pseudo terminal, with typed input."""

    def __init__(self, *command: str, setup: Path) -> None:
        self._ours, its = pty.openpty()
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=its, stdout=its, stderr=its, start_new_session=True,
            env={**os.environ, "TERM": "dumb", "HOME": str(setup.parent)})
        os.close(its)
        os.write(self._ours, f" . {setup}\n".encode())
        self._until_end()

    def tab(self, line: str) -> set[str]:
        """The completions after `nvsharectl` and these words."""
        os.write(self._ours, CLEAR + f"nvsharectl {line}\t".encode())
        return {word.strip() for word in self._until_end().split("\n")} - {""}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _until_end(self) -> str:
        shown = b""
        while END not in shown:
            shown += os.read(self._ours, 4096)
        return shown.partition(END)[0].rpartition(BEGIN)[2].decode().replace("\r", "")


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"there is no {request.param} on this machine")
    return str(request.param)


@pytest.fixture(scope="module")
def tab(shell: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """Types a line and Tab; returns the completions."""
    if shell == "fish":
        yield in_fish
        return
    setup = tmp_path_factory.mktemp(shell) / "setup"
    if shell == "bash":
        setup.write_text(script("bash") + BASH)
        typist = Typist("bash", "--noprofile", "--norc", "-i", setup=setup)
    else:
        setup.write_text(f"autoload -Uz compinit && compinit -D -u\n{script('zsh')}\n{ZSH}")
        typist = Typist("zsh", "-f", "-i", setup=setup)
    yield typist.tab
    typist.close()


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh on this machine")
def test_zsh_loads_the_completion_from_a_folder_in_fpath(tmp_path: Path) -> None:
    (tmp_path / "_nvsharectl").write_text(script("zsh"))
    setup = tmp_path / "setup"
    setup.write_text(f"fpath=({tmp_path} $fpath)\nautoload -Uz compinit && compinit -D -u\n{ZSH}")
    typist = Typist("zsh", "-f", "-i", setup=setup)
    for _ in range(2):                  # the first Tab loads the completion script
        assert typist.tab("anti-thrash o") == {"on", "off"}
    typist.close()


def in_fish(line: str) -> set[str]:
    """Completions of fish for `line`, which has no quotes."""
    ended = subprocess.run(["fish", "--no-config"], cwd=ROOT, text=True, check=True,
                           capture_output=True,
                           input=f"{script('fish')}\ncomplete --do-complete 'nvsharectl {line}'\n")
    assert ended.stderr == ""
    return {found.partition("\t")[0] for found in ended.stdout.splitlines()}


@pytest.mark.parametrize(("line", "offered"), [
    ("set-tq a", {"auto"}), ("-S ", {"auto", "on", "off"}), ("-T5 weig", {"weight"}),
    ("--bus=unix:path=/x anti-thrash o", {"on", "off"}), ("status --bus run s", set()),
    ("anti-thrash --gpu 00000000:17:00.0 o", {"on", "off"}), ("clients --gpu ", set()),
    ("preload --root pyproj", {"pyproject.toml"}), ("preload --root on s", {"status"}),
    ("run --socket on --js", {"--json"}), ("run -- status --js", set()),
    ("run -- head --bus s", {"setup.py", "systemd"}),
])
def test_completion_offers_matching_words(tab: Tab, line: str, offered: set[str]) -> None:
    assert {one.rstrip("/") for one in tab(line)} == offered


@pytest.mark.parametrize(("line", "offered"), [
    ("--bus=", {"system", "session"}), ("status --bus=s", {"system", "session"}),
    ("--bus=unix:s", set()), ("preload --root=pyproj", {"pyproject.toml"}),
])
def test_completion_after_an_equals_sign_offers_values(tab: Tab, line: str,
                                                       offered: set[str]) -> None:
    """fish and zsh may put the option before each value."""
    option = line.split()[-1].partition("=")[0]
    assert {one.removeprefix(f"{option}=") for one in tab(line)} - {option} == offered


def test_completion_after_run_offers_programs(tab: Tab) -> None:
    assert "bash" in tab("run --json -- bas")


def test_completion_of_an_empty_word_offers_values_and_in_bash_options(
        shell: str, tab: Tab) -> None:
    """bash offers options too; the other shells offer them only after a dash."""
    more = shell == "bash"
    assert tab("--bus status ") == NAMES | (OWN if more else set())
    assert tab("anti-thrash ") == {"auto", "on", "off"} | (COMMON | {"--gpu"} if more else set())
