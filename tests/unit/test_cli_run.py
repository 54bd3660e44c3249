# SPDX-License-Identifier: Apache-2.0
"""nvsharectl run: the environment and the exit status of the program."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared import library
from nvshared.cli.main import main
from nvshared.errors import ExitCode, InvalidArgs

ROOT = Path(__file__).parents[2]
START = "import sys; from nvshared import library; from pathlib import Path;" \
    "library.hook = lambda: Path('/lib/none.so'); from nvshared.cli.main import main;" \
    "sys.exit(main())"


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """nvsharectl run with a missing library: the loader only prints a warning."""
    return subprocess.run([sys.executable, "-c", START, "run", *arguments], cwd=ROOT, text=True,
                          check=False, env={**os.environ, **environment}, capture_output=True)


@pytest.mark.parametrize(("before", "after"), [
    ("", "/l/libnvshare.so"),
    ("/l/asan.so", "/l/asan.so:/l/libnvshare.so"),
    ("/l/libnvshare.so:/l/a.so /l/b.so", "/l/a.so:/l/b.so:/l/libnvshare.so"),
    ("/old/libnvshare.so /l/a.so", "/l/a.so:/l/libnvshare.so"),
    (":: ", "/l/libnvshare.so"),
])
def test_environment_for_a_preloaded_program_has_the_library_in_ld_preload_once(
        before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "hook", lambda: Path("/l/libnvshare.so"))
    environment = {"HOME": "/root", "LD_PRELOAD": before}
    assert library.preloaded(environment) == {"HOME": "/root", "LD_PRELOAD": after}
    assert environment["LD_PRELOAD"] == before


@pytest.mark.parametrize("path", ["/my files/hook.so", "/a:b/hook.so"])
def test_library_is_refused_at_a_path_that_ld_preload_cannot_carry(
        path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "hook", lambda: Path(path))
    with pytest.raises(InvalidArgs, match="blank or a colon"):
        library.preloaded({})


def test_run_command_replaces_nvsharectl_by_the_program() -> None:
    script = 'echo "$LD_PRELOAD $NVSHARE_SOCKET $1"; exit 3'
    ended = run("--socket", "/run/x.sock", "--", "sh", "-c", script, "sh", "--json")
    assert ended.stdout == "/lib/none.so /run/x.sock --json\n"
    assert ended.returncode == 3


@pytest.mark.parametrize("ignored", [(), (signal.SIGPIPE,), (signal.SIGPIPE, signal.SIGXFSZ)])
def test_run_command_gives_the_program_the_ignored_signals_of_the_parent_process(
        ignored: tuple[signal.Signals, ...]) -> None:
    script = f'''for one in {" ".join(str(int(one)) for one in ignored)}; do trap "" $one; done
        "$0" -c "$1" run grep SigIgn /proc/self/status; grep SigIgn /proc/self/status'''
    ended = subprocess.run(["bash", "-c", script, sys.executable, START], cwd=ROOT, text=True,
                           check=True, capture_output=True)
    program, parent = ended.stdout.splitlines()
    assert program == parent
    bits = int(parent.split()[1], 16)   # with those that the tests inherit, as from nohup
    assert [one for one in (signal.SIGPIPE, signal.SIGXFSZ) if bits >> (one - 1) & 1] == [*ignored]


@pytest.mark.parametrize("given", [[], ["LC_CTYPE=C"], ["LC_CTYPE=C.UTF-8"], ["LANG=C.UTF-8"]])
def test_run_command_adds_no_locale_to_the_programs_environment(given: list[str]) -> None:
    ended = subprocess.run(["env", "-i", *given, sys.executable, "-c", START, "run", "env"],
                           cwd=ROOT, text=True, check=True, capture_output=True)
    assert [line for line in ended.stdout.splitlines() if line.startswith("L")] == [
        *given, "LD_PRELOAD=/lib/none.so"]


def test_run_command_advises_to_start_the_service_if_the_service_has_the_socket(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where = f"from nvshared import names; names.DEFAULT_SOCKET = {str(tmp_path / 'sock')!r};"
    monkeypatch.delenv("NVSHARE_SOCKET", raising=False)
    ended = subprocess.run([sys.executable, "-c", where + START, "run", "true"], cwd=ROOT,
                           text=True, check=False, capture_output=True)
    assert ("nvshared is not running, the program waits for it when it uses a GPU; "
            "start it with: systemctl start nvshared\n") in ended.stderr


def test_run_command_passes_a_relative_socket_on_as_an_absolute_path(
        capsys: pytest.CaptureFixture[str]) -> None:
    ended = run("--socket", "run/sock", "--", "sh", "-c", 'echo "$NVSHARE_SOCKET"')
    assert ended.stdout == f"{ROOT}/run/sock\n"
    assert main(["run", "--socket", "", "--", "true"]) == ExitCode.INVALID_ARGS
    assert "'' is no path" in capsys.readouterr().err


def test_run_command_with_name_sets_the_programs_name_and_refuses_an_invalid_name(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "my model", "--", "sh", "-c", 'echo "$NVSHARE_NAME"').stdout == (
        "my model\n")
    for wrong in ("", " ", "a\x1bb", "\u00e4" * 45):
        assert main(["run", "--name", wrong, "--", "true"]) == ExitCode.INVALID_ARGS
        said = capsys.readouterr().err
        assert f"the program cannot be called {wrong!r}; give letters, digits" in said


def test_run_command_with_terms_sets_their_variables_and_refuses_invalid_values(
        capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--memory", "8GiB", "--compute", "50%", "--weight", "30", "--priority", "background"]
    script = 'echo "$NVSHARE_MEMORY_LIMIT $NVSHARE_COMPUTE_LIMIT $NVSHARE_WEIGHT $NVSHARE_PRIORITY"'
    assert run(*options, "--", "sh", "-c", script).stdout == "8GiB 50% 30 background\n"
    assert run("sh", "-c", script, NVSHARE_WEIGHT="7").stdout == "  7 \n"
    for name, wrong, right in (
        ("memory", "8", "give a unit, such as 8GiB"), ("compute", "101", "from 1 to 100"),
        ("weight", "200", "from 1 to 100"), ("priority", "urgent", "background, normal, high"),
    ):
        assert main(["run", f"--{name}", wrong, "--", "true"]) == ExitCode.INVALID_ARGS
        said = capsys.readouterr().err
        assert f"the {name} cannot be '{wrong}'" in said
        assert right in said


def test_run_command_adds_the_cache_trim_folder_to_pythonpath_and_keeps_given_variables() -> None:
    def variables(*options: str, **given: str) -> str:
        script = 'echo "$PYTHONPATH $NVSHARE_REQUIRED $NVSHARE_VERBOSE $NVSHARE_SOCKET"'
        return run(*options, "sh", "-c", script, **given).stdout.rstrip("\n")

    assert variables(PYTHONPATH="/m", NVSHARE_TRIM_CACHES="0") == "/m 1  "
    assert variables(PYTHONPATH="/m", NVSHARE_TRIM_CACHES="1", NVSHARE_SOCKET="/run/y.sock") == (
        f"{library.program()}:/m 1  /run/y.sock")
    assert variables(
        "--verbose", PYTHONPATH="", NVSHARE_TRIM_CACHES="1", NVSHARE_REQUIRED="0",
    ) == f"{library.program()} 0 1 "


@pytest.mark.parametrize(("required", "does"), [
    ("0", "runs unshared"), ("1", "waits for it when it uses a GPU"),
])
def test_run_command_without_nvshared_warns_without_connecting_to_the_socket(
        tmp_path: Path, required: str, does: str) -> None:
    path = tmp_path / "sock"

    def said() -> list[str]:
        ended = run("--socket", str(path), "echo", "on", NVSHARE_REQUIRED=required)
        assert (ended.stdout, ended.returncode) == ("on\n", 0)
        return [line for line in ended.stderr.splitlines() if "nvshared" in line]

    absent = [
        f"nvsharectl: no nvshared listens at {path}, the program {does}; start one there: nvshared "
        f"--socket {path}; or, to use the machine's own nvshared, unset NVSHARE_SOCKET and leave "
        "out --socket"]
    assert said() == absent
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(path))
        daemon.listen(1)
        assert said() == []
        daemon.setblocking(False)
        with pytest.raises(BlockingIOError):    # a connection would start nvshared
            daemon.accept()
    assert said() == absent             # a killed daemon leaves the socket file behind


# What a filter of system calls, such as RestrictAddressFamilies=AF_INET, answers to socket(2).
FILTERED = "import socket, os\ndef refuse(*_):\n    raise OSError(97, os.strerror(97))\n" \
    "socket.socket = refuse\n"
REFUSED = "Address family not supported by protocol"


@pytest.mark.parametrize(("arguments", "out", "words"), [
    (["run", "--", "echo", "on"], "on\n",
     f"nvshared cannot be reached, the program waits for it when it uses a GPU: {REFUSED}; see"),
    (["status"], "", f"cannot connect to the message bus at 'unix:path=/run/b': {REFUSED}; is"),
    (["limit", "1", "--memory", "1GiB", "--bus", "unix:path=/run/c"], "",
     f"cannot connect to the message bus at 'unix:path=/run/c': {REFUSED}; is"),
])
def test_command_without_sockets_says_that_nvshared_cannot_be_reached_and_why(
        arguments: list[str], out: str, words: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FILTERED + START, *arguments], cwd=ROOT, text=True, check=False,
        env={**os.environ, "NVSHARE_BUS": "unix:path=/run/b"}, capture_output=True)
    assert ended.stdout == out
    assert [line for line in ended.stderr.splitlines() if words in line]


@pytest.mark.parametrize(("first", "mode", "words"), [
    ("#!/no/such/python", 0o755, "its interpreter or its loader is not on this machine"),
    ("#!/no/such/python", 0o644, "Permission denied"),
    ("echo on", 0o755, "without a first line such as #!/bin/sh? Then write: nvsharectl run -- sh"),
])
def test_run_command_of_a_script_that_cannot_be_executed_is_refused_with_the_reason(
        tmp_path: Path, first: str, mode: int, words: str) -> None:
    script = tmp_path / "train"
    script.write_text(f"{first}\n")
    script.chmod(mode)
    ended = run("--", str(script))
    assert ended.returncode == ExitCode.NOT_EXECUTABLE
    assert words in ended.stderr


def test_run_command_prints_json_errors_only_for_the_option_before_the_program(
        capsys: pytest.CaptureFixture[str]) -> None:
    said = "there is no program 'no-such-program'"
    assert main(["run", "--", "no-such-program", "--json"]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == f"nvsharectl: {said}; check its name and PATH\n"
    assert main(["run", "--json", "--", "no-such-program"]) == ExitCode.NOT_FOUND
    assert json.loads(capsys.readouterr().err)["error"] == said
    assert main(["run", "--socket", "--", "sh", "--json"]) == ExitCode.INVALID_ARGS
    assert capsys.readouterr().err.startswith("nvsharectl: ")


def test_run_command_with_gang_sets_nvshare_gang_to_a_random_name_and_the_size() -> None:
    one = run("--gang", "-n", "4", "--", "sh", "-c", 'echo "$NVSHARE_GANG"').stdout
    other = run("--gang", "--", "sh", "-c", 'echo "$NVSHARE_GANG"', NVSHARE_GANG="x:2").stdout
    assert re.fullmatch(r"[0-9a-f]{16}:4\n", one)
    assert re.fullmatch(r"[0-9a-f]{16}:\n", other)
    for wrong in (("--gang", "-n", "1"), ("-n", "2"), ("--gang", "-n", "two")):
        assert main(["run", *wrong, "--", "true"]) == ExitCode.INVALID_ARGS
