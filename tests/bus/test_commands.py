# SPDX-License-Identifier: Apache-2.0
"""nvsharectl, as a process or in a thread, with a daemon on a private bus."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvshared.bus import Publication
from nvshared.cli.main import main
from nvshared.cli.status import clients
from nvshared.control import Daemon
from nvshared.errors import ExitCode
from nvshared.machine.saving import Saved
from nvshared.scheduler.events import Terms
from nvshared.sharing.manager import Manager
from nvshared.terms import Term
from nvshared.units import GIB, SECOND
from tests.bus.service import UNUSED_PID, PrivateBus, a_client, decide, private_bus
from tests.unit.scripted import FACTS

PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
NVSHARECTL = (sys.executable, "-c", PROGRAM)
QUOTED = " ".join(f"'{part}'" for part in NVSHARECTL)
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


Run = Callable[..., Awaitable[Ended]]


async def run(*command: str, **environment: str) -> Ended:
    """Runs a command; its standard input and output are no terminal."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, **environment}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


def in_process(capsys: pytest.CaptureFixture[str]) -> Run:
    """nvsharectl in a thread of this process, to avoid a start of Python for each command."""

    def call(arguments: Sequence[str]) -> int:
        try:
            return main(arguments)
        except SystemExit as end:       # argparse raises SystemExit after --help
            return int(end.code or 0)

    async def start(*arguments: str) -> Ended:
        code = await asyncio.to_thread(call, arguments)
        return Ended(code, *capsys.readouterr())

    return start


@pytest.fixture
def ctl(publication: Publication, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("NVSHARE_BUS", private.address)
    return in_process(capsys)


def sentence(ended: Ended) -> str:
    """The error of a failed command, which must be a single line on stderr."""
    assert ended.out == ""
    assert ended.err.startswith("nvsharectl: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err.removeprefix("nvsharectl: ").rstrip("\n")


async def test_status_and_doctor_say_why_no_memory_is_stored_on_disk(
        manager: Manager, ctl: Run, tmp_path: Path) -> None:
    manager.disk.use((tmp_path / "none", GIB))
    why = f"o memory goes to the disk: {tmp_path}/none: No such file or directory"
    assert f"\nN{why}.\n" in (await ctl("status")).out
    assert f"n{why}" in (await ctl("doctor")).out


async def test_status_prints_a_line_per_gpu_and_client(manager: Manager, ctl: Run) -> None:
    assert "No program uses a GPU" in (await ctl("status")).out
    client = a_client(manager, manager.gpus[0])
    decide(client, holders=[client])
    ended = await ctl("status")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == [
        "GPU", "Name", "Temp", "Power", "Memory-Usage", "GPU-Util", "TQ", "Mode", "Holder", "Queue"]
    assert lines[1].split() == [
        "0", "Card", "61C", "412W", "40.0/64.0G", "97%", "30s", "auto", "python[4999999]", "0"]
    assert lines[4].split() == [
        "GPU", "PID", "USER", "MEM", "RESIDENT", "SWAPPED", "STATE", "HELD", "WAITED", "COMMAND"]
    assert lines[5].split()[:7] == ["0", "4999999", "root", "31.0G", "21.0G", "10.0G", "idle"]
    assert lines[5].endswith(" python")
    assert (await ctl()).out.splitlines()[:5] == lines[:5]      # no verb: runs status


async def test_drain_command_names_and_waits_for_programs_with_swapped_memory(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.cli.settings.DRAIN_POLL", 0.01)
    assert "can be stopped" in (await ctl("drain")).out
    client = a_client(manager, manager.gpus[0])
    ended = await ctl("drain", "--check")
    assert ended.code == ExitCode.FAILURE
    assert ended.out == "python[4999999] on GPU 0, 10.0G in host memory: python\n"
    assert ended.err.startswith("nvsharectl: 1 program would stand still without nvshared; ")
    found = json.loads((await ctl("drain", "--check", "--json")).err)
    assert found["left"] == [{"pid": UNUSED_PID, "gpu": 0}]
    # Without --check programs that fit are loaded, and drain waits for the others.
    changed = asyncio.Event()
    manager.gpus[0].changed.connect(lambda: changed.set())
    waiting = asyncio.ensure_future(ctl("drain"))
    await changed.wait()
    assert manager.gpus[0].settings.draining
    assert not waiting.done()
    manager.gpus[0].leave(client)
    assert (await waiting).out.splitlines()[-2:] == [
        f"python[{UNUSED_PID}] goes on without nvshared, or has ended",
        "nvshared can be stopped: no program needs it now."]


async def test_drain_command_without_waiting_names_programs_that_do_not_fit(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.bus.dispatch.DEPARTURE_INTERVAL", 0.01)
    monkeypatch.setattr("nvshared.bus.services.DRAINER_LINGER", 0.01)
    monkeypatch.setattr("nvshared.cli.settings.DRAIN_POLL", 0.01)
    gpu = manager.gpus[0]
    a_client(manager, gpu)
    over = asyncio.Event()
    gpu.changed.connect(lambda: None if gpu.settings.draining else over.set())
    ended = await ctl("drain", "--no-wait")
    assert ended.code == ExitCode.FAILURE
    assert ended.err == (
        "nvsharectl: 1 program would stand still without nvshared; "
        "end these programs or the holders of their GPU, or wait: nvsharectl drain\n")
    await over.wait()                   # the daemon ends the drain, as nvsharectl has left the bus
    assert gpu.settings.anti_thrash is manager.settings.anti_thrash


async def test_clients_command_lists_clients_of_a_gpu_and_the_help_example_prints_process_ids(
        manager: Manager, ctl: Run, private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0], pid=11)
    (command,) = [line for line, text in clients.examples if text == "their process ids"]
    ended = await run("bash", "-c", command.replace("nvsharectl", QUOTED, 1),
                      NVSHARE_BUS=private.address)
    assert ended.out == "11\n"
    a_client(manager, manager.gpus[1], pid=22)
    assert [line.split()[1] for line in (await ctl("clients")).out.splitlines()[1:]] == ["11", "22"]
    for name in ("1", manager.gpus[1].facts.uuid):
        (line,) = (await ctl("clients", "--gpu", name)).out.splitlines()[1:]
        assert line.split()[1] == "22"
    found = json.loads((await ctl("clients", "--gpu", "0", "--json")).out)
    assert [client["pid"] for client in found["clients"]] == [11]


async def test_settings_commands_change_all_gpus_or_the_named_gpu(
        manager: Manager, ctl: Run) -> None:
    assert (await ctl("set-tq", "7")).out == "The quantum of all GPUs is 7 seconds.\n"
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [7, 7]
    await ctl("set-tq", "9", "--gpu", FACTS.pci_bus_id)
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [9, 7]
    assert (await ctl("anti-thrash", "on", "--gpu", "1")).code == ExitCode.OK
    assert [gpu.settings.anti_thrash for gpu in manager.gpus] == ["auto", "on"]
    assert (await ctl("policy", "fifo", "--gpu", "1")).out == "The policy of GPU 1 is fifo.\n"
    assert [gpu.settings.policy for gpu in manager.gpus] == ["fair", "fifo"]
    assert "on, fifo" in (await ctl("status")).out
    assert [gpu["policy"] for gpu in json.loads((await ctl("--json")).out)["gpus"]] == [
        "fair", "fifo"]
    found = json.loads((await ctl("--json", "policy", "deadline")).out)
    assert found == {"policy": "deadline", "gpu": None}
    assert {gpu.settings.policy for gpu in manager.gpus} == {"deadline"}
    found = json.loads((await ctl("--json", "anti-thrash", "off")).out)
    assert found == {"anti_thrash": "off", "gpu": None}
    assert [gpu.settings.anti_thrash for gpu in manager.gpus] == ["off", "off"]
    client = a_client(manager, manager.gpus[0], pid=11)
    assert (await ctl("limit", "11", "--memory", "1b")).out == "Process 11 may allocate 1 byte.\n"
    assert json.loads((await ctl("reset", "--json")).out) == {
        "tq": 30, "tq_usec": 30_000_000, "anti_thrash": "auto", "policy": "fair"}
    assert client.terms.in_force == Terms(1)        # reset changes no terms of programs
    help_text = " ".join((await ctl("help", "reset")).out.split())
    assert "set for programs and tenants, with limit, weight and suspend, stay" in help_text
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [30, 30]


async def test_preempt_command_without_a_gpu_index_applies_to_the_only_gpu(
        manager: Manager, ctl: Run) -> None:
    ended = await ctl("preempt")
    assert (ended.code, sentence(ended)) == (
        ExitCode.INVALID_ARGS, "there are 2 GPUs here; name one: 0, 1")
    manager.gpus.pop()
    assert (await ctl("preempt")).out == "The turns on GPU 0 end now if a program waits.\n"


async def test_quantum_set_to_auto_is_shown_as_auto_with_the_present_length(
        manager: Manager, ctl: Run) -> None:
    assert (await ctl("-T", "auto")).out == "The quantum of all GPUs is auto.\n"
    found = json.loads((await ctl("--json")).out)
    assert (found["tq"], found["tq_auto"]) == (30, True)
    assert [(gpu["tq_usec"], gpu["tq_auto"]) for gpu in found["gpus"]] == [(1_200_000, True)] * 2
    assert "  auto  " in (await ctl("status")).out
    await ctl("set-tq", "9")
    assert json.loads((await ctl("set-tq", "auto", "--gpu", "1", "--json")).out) == {
        "tq": "auto", "tq_usec": None, "gpu": "1"}
    assert [gpu.settings.tq is None for gpu in manager.gpus] == [False, True]
    assert (await ctl("reset")).out == (
        "The configuration holds again: TQ 30 seconds, anti-thrash auto, policy fair.\n")


async def test_limit_commands_apply_to_all_clients_of_a_pid_or_to_clients_on_the_named_gpu(
        manager: Manager, ctl: Run) -> None:
    one, two, other = (
        a_client(manager, manager.gpus[gpu], pid=pid) for gpu, pid in ((0, 11), (1, 11), (0, 22)))
    ended = await ctl("limit", "11", "--memory", "20GiB")
    assert (ended.code, ended.out) == (0, "Process 11 may allocate 20GiB.\n")
    await ctl("weight", "11", "200", "--gpu", "1")
    assert json.loads((await ctl("suspend", "11", "--gpu", "0", "--json")).out) == {
        "pid": 11, "gpu": "0", "suspended": True}
    assert [client.terms.in_force for client in (one, two, other)] == [
        Terms(20 << 30, 100, True), Terms(20 << 30, 200, False), Terms()]
    shown = {each["id"]: each for each in json.loads((await ctl("--json")).out)["clients"]}
    assert shown[one.id]["suspended"] is True
    assert (shown[two.id]["memory_limit"], shown[two.id]["weight"]) == (20 << 30, 200)
    await ctl("resume", "11")
    ended = await ctl("limit", "--compute", "50%", "11")
    assert (ended.code, ended.out) == (0, "Process 11 may use the GPU at most 50 % of the time.\n")
    assert one.terms.in_force == Terms(20 << 30, compute_limit=50)
    both = await ctl("limit", "11", "--compute", "none", "--memory", "none", "--json")
    assert json.loads(both.out) == {
        "pid": 11, "gpu": None, "memory_limit": 0, "compute_limit": 100}
    assert one.terms.in_force == Terms()


@pytest.mark.parametrize(("arguments", "tq", "mode", "out"), [
    (["--set-tq=12"], 12, "auto", "The quantum of all GPUs is 12 seconds.\n"),
    (["-T", "3", "-S", "on", "--json"], 3, "on",
     {"tq": 3, "tq_usec": 3_000_000, "anti_thrash": "on", "gpu": None}),
    (["-T", "4", "-S", "off"], 4, "off",
     "The quantum of all GPUs is 4 seconds.\nThe anti-thrash mode of all GPUs is off.\n"),
])
async def test_original_nvshare_flags_set_tq_and_anti_thrash(
        manager: Manager, ctl: Run, arguments: list[str], tq: int, mode: str, out: object) -> None:
    ended = await ctl(*arguments)
    assert ended.code == ExitCode.OK
    assert (json.loads(ended.out) if "--json" in arguments else ended.out) == out
    assert (manager.tq, manager.settings.anti_thrash) == (tq * SECOND, mode)


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["status", "--bus", "none"], ExitCode.INVALID_ARGS, "an nvshared that runs with --bus "
     "none cannot be asked or told anything; start it with another, such as: nvshared --bus"),
    (["-T", "500us"], ExitCode.INVALID_ARGS, "2min (units: us, ms, s, min, h, d), or auto"),
    (["-T", "9", "status"], ExitCode.INVALID_ARGS, "not before status; write: nvsharectl set-"),
    (["set-tq", "5", "--gpu", "9"], ExitCode.NO_SUCH_THING, "'9'; the indices are: 0, 1"),
    (["statsu"], ExitCode.INVALID_ARGS, "'statsu'; did you mean status?"),
    (["reload"], ExitCode.INVALID_ARGS, "'reload'; give: systemctl reload nvshared"),
    (["priority", "user:x", "urgent"], ExitCode.INVALID_ARGS, "the priority cannot be 'urgent'"),
    (["limit", "user:x", "--neighbour", "maybe"], ExitCode.INVALID_ARGS, ", or off, or none"),
    (["top"], ExitCode.INVALID_ARGS, "top needs a terminal"),
    (["top", "-i", "0"], ExitCode.INVALID_ARGS, "the interval cannot be '0'"),
    (["-S", "maybe"], ExitCode.INVALID_ARGS, "'maybe'; give one of auto, on, off"),
    (["run"], ExitCode.INVALID_ARGS, "no program is named"),
    (["run", "--", ""], ExitCode.INVALID_ARGS, "no program is named"),
    (["suspend", "0"], ExitCode.INVALID_ARGS, "'0' is no process id; see the programs"),
    (["suspend", "999"], ExitCode.NO_SUCH_THING, "no process 999 uses a GPU; see those"),
    (["resume", "999", "--gpu", "1"], ExitCode.NO_SUCH_THING, "no process 999 uses GPU 1"),
    (["limit", "1", "--compute", "101"], ExitCode.INVALID_ARGS, "from 1 to 100, or none"),
    (["limit", "1", "--memory", "16777216T"], ExitCode.INVALID_ARGS, "551615 bytes, or none"),
    (["--gpu", "0", "clients"], ExitCode.INVALID_ARGS, "'--gpu' belongs behind its verb, not"),
    (["set-tq", "9" * 5000], ExitCode.INVALID_ARGS, "9'; give whole seconds, such as 30, or"),
    (["clients", "--gpu", "\udcff"], ExitCode.INVALID_ARGS, "can't encode character '\\udcff'"),
    (["preload", "status", "--root", ""], ExitCode.INVALID_ARGS, "'' is no folder"),
    (["save", "--list", "--to", ""], ExitCode.INVALID_ARGS, "'' is no folder; give its path"),
    (["restore", "--all", "--from", ""], ExitCode.INVALID_ARGS, "'' is no folder; give its path"),
    (["history", "--gpu", ""], ExitCode.NO_SUCH_THING, "'' is no GPU; give an index, UUID or"),
    (["--bus", "unix:path="], ExitCode.FAILURE, "only unix:path= and unix:abstract= can be"),
    (["--bus", "unix:abstract="], ExitCode.FAILURE, "only unix:path= and unix:abstract= can be"),
    (["--bus", "nonsense"], ExitCode.INVALID_ARGS, "'nonsense' is no message bus"),
    (["--bus", "unix:path=/no/such"], ExitCode.FAILURE, "No such file or directory"),
])
async def test_nvsharectl_command_with_invalid_arguments_is_refused_in_a_single_sentence(
        manager: Manager, ctl: Run, arguments: list[str], code: ExitCode, words: str) -> None:
    ended = await ctl(*arguments)
    assert words in sentence(ended)
    assert ended.code == code
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [30, 30]


async def test_command_without_a_daemon_says_how_to_start_nvshared(private: PrivateBus) -> None:
    ended = await run(*NVSHARECTL, "--bus", private.address)
    assert ended.code == ExitCode.NOT_RUNNING
    assert sentence(ended) == (
        f"nvshared is not running; start it with: nvshared --bus {private.address}")
    on_system = await run(*NVSHARECTL, DBUS_SYSTEM_BUS_ADDRESS=private.address)
    assert sentence(on_system) == "nvshared is not running; start it with: systemctl start nvshared"


async def test_nvsharectl_never_starts_a_daemon_by_bus_activation(
        capsys: pytest.CaptureFixture[str]) -> None:
    """Bus activation would start a failed service again at each command."""
    with private_bus() as bus:
        bus.stop()
        (bus.folder / "com.nvshare.service").write_text(
            f"[D-BUS Service]\nName=com.nvshare\nExec=/bin/touch {bus.folder}/started\n")
        bus.start()
        for words in (["status"], ["doctor"], ["clients"], ["set-tq", "3"]):
            ended = await in_process(capsys)("--bus", bus.address, *words)
            assert ended.code != ExitCode.OK
            assert not (bus.folder / "started").exists()


async def test_top_prints_no_error_when_the_output_pipe_is_closed(
        ctl: Run, private: PrivateBus) -> None:
    """`nvsharectl top --json | head -1` ends quietly."""
    ended = await run("bash", "-c", f"{QUOTED} top --json -i 0.1 | head -1",
                      NVSHARE_BUS=private.address)
    assert json.loads(ended.out)["tq"] == 30
    assert ended.err == ""


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [(">&-", 0, ""), (">/dev/full", 1, "the output cannot be written: No space left on device")])
async def test_command_with_unwritable_stdout_fails_with_the_reason(
        ctl: Run, private: PrivateBus, redirection: str, code: int, words: str) -> None:
    for command in ("status", "help", "--help"):
        ended = await run(
            "bash", "-c", f"{QUOTED} {command} {redirection}", NVSHARE_BUS=private.address,
            PYTHONUNBUFFERED="")        # unset: Python then writes the end of its buffer at exit
        assert ended.code == code
        assert ended.err == (f"nvsharectl: {words}\n" if words else "")
    ended = await run(
        "bash", "-c", f"{QUOTED} status --json {redirection}", NVSHARE_BUS=private.address)
    assert ended.code == code
    assert [json.loads(line)["error"] for line in ended.err.splitlines()] == [words] * bool(words)


async def test_top_with_a_closed_stdin_reports_that_a_terminal_is_needed(
        ctl: Run, private: PrivateBus) -> None:
    ended = await run("bash", "-c", f"{QUOTED} top <&-", NVSHARE_BUS=private.address)
    assert ended.code == ExitCode.INVALID_ARGS
    assert ended.err.startswith("nvsharectl: top needs a terminal; ")


@pytest.mark.parametrize("command", [
    "set-tq 5 --gpu 9 2>&-", "set-tq 5 --gpu 9 2>/dev/full", "set-tq 5 --gpu 9 --json 2>/dev/full",
])
async def test_command_with_unwritable_stderr_keeps_the_exit_code(
        ctl: Run, private: PrivateBus, command: str) -> None:
    ended = await run(
        "bash", "-c", f"{QUOTED} {command}", NVSHARE_BUS=private.address,
        PYTHONUNBUFFERED="",            # unset: Python then buffers output that cannot be written
    )
    assert (ended.code, ended.out, ended.err) == (ExitCode.NO_SUCH_THING, "", "")


async def test_internal_error_of_nvsharectl_is_reported_with_the_command_that_prints_a_traceback(
        ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.cli.status.Daemon", None)
    monkeypatch.setenv("NVSHARE_DEBUG", "0")
    ended = await ctl("status")
    assert "a fault in nvsharectl itself, TypeError" in sentence(ended)
    assert "NVSHARE_DEBUG=1 nvsharectl status" in ended.err
    ended = await ctl("status", "--json")
    assert "nvsharectl itself, TypeError" in json.loads(ended.err)["error"]
    monkeypatch.setenv("NVSHARE_DEBUG", "1")
    with pytest.raises(TypeError):
        await ctl("status")


async def test_command_that_the_system_refuses_a_file_names_the_file_and_not_the_output(
        ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setenv("NVSHARE_DEBUG", "0")
    monkeypatch.setattr("nvshared.cli.status.Daemon", refuse)
    ended = await ctl("status")
    assert sentence(ended).startswith(
        "the system refuses what nvsharectl needs: No space left on device: /tmp/x")
    assert ended.code == ExitCode.FAILURE


async def test_suspend_command_reports_a_step_as_perhaps_done_when_the_bus_ends_before_the_reply(
        manager: Manager, ctl: Run, private: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (a_client(manager, gpu, pid=11) for gpu in manager.gpus)
    set_term = manager.set_term

    def end(id: int, term: Term, value: int, *, by_owner: bool) -> None:
        set_term(id, term, value, by_owner=by_owner)
        if id == two.id:
            private.stop()

    monkeypatch.setattr(manager, "set_term", end)
    ended = await ctl("suspend", "11", "--json")
    assert (one.terms.in_force.suspended, two.terms.in_force.suspended) == (True, True)
    said = json.loads(ended.err)
    assert "(done: suspended on GPU 0; perhaps done: suspended on GPU 1)" in said["error"]
    assert (said["done"], said["not_done"], said["unknown"]) == (
        [{"gpu": 0, "suspended": True}], [], [{"gpu": 1, "suspended": True}])
    assert ended.code == ExitCode.FAILURE


@pytest.mark.skipif(not shutil.which("busctl"), reason="there is no busctl on this machine")
async def test_busctl_calls_and_introspects_the_daemon(manager: Manager, publication: Publication,
                                                       private: PrivateBus) -> None:
    a_client(manager, manager.gpus[0])
    busctl = ("busctl", f"--address={private.address}")
    target = ("com.nvshare", "/com/nvshare", "com.nvshare.Manager")
    assert (await run(*busctl, "call", *target, "SetTQ", "u", "17")).code == 0
    assert [gpu.tq // SECOND for gpu in manager.gpus] == [17, 17]
    assert (await run(*busctl, "get-property", *target, "TQ")).out == "u 17\n"
    tree = (await run(*busctl, "tree", "--list", "com.nvshare")).out.split()
    assert {"/com/nvshare", "/com/nvshare/gpu/0", "/com/nvshare/client/1"} <= set(tree)
    shown = (await run(*busctl, "introspect", "com.nvshare", "/com/nvshare/gpu/0")).out
    for words in ("com.nvshare.GPU.Statistics", ".SetAntiThrash", ".QueueLength", "emits-change"):
        assert words in shown
    ended = await run(*busctl, "call", *target, "SetTQ", "u", "0")
    assert "the quantum cannot be 0 seconds" in ended.err


async def test_restore_of_an_empty_folder_name_restores_no_program(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as "$FOLDER" where that is not set."""
    restored = []

    async def listed(_to: str) -> list[Saved]:
        return [Saved("/saved/one", "saved", 1, "", 0, 7, 0, "one", 1, 0, {})]

    async def restore(saved: Saved) -> int:
        restored.append(saved.folder)
        return saved.pid

    monkeypatch.setattr(manager.saving, "_list", listed)
    monkeypatch.setattr(manager.saving, "restore", restore)
    ended = await ctl("restore", "")
    assert (ended.code, restored) == (ExitCode.INVALID_ARGS, [])
    assert sentence(ended).startswith("there is no saved program ''")
    assert (await ctl("restore", "--all")).code == 0
    assert restored == ["/saved/one"]


async def test_save_list_of_a_relative_folder_looks_below_the_working_directory(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked = []

    async def listed(to: str) -> list[Saved]:
        looked.append(to)
        return []

    monkeypatch.setattr(manager.saving, "_list", listed)
    monkeypatch.chdir(tmp_path)
    assert (await ctl("save", "--list", "--to", "saved")).out == "No program is saved.\n"
    assert looked == [f"{tmp_path}/saved"]


async def test_save_that_is_not_permitted_says_so_once_with_its_exit_status(
        manager: Manager, ctl: Run, other_user: None) -> None:
    for number in range(2):
        a_client(manager, manager.gpus[0], pid=UNUSED_PID - number)
    ended = await ctl("save", "--all")
    assert ended.code == ExitCode.NOT_PERMITTED
    assert sentence(ended).startswith("2 programs could not be saved: ")
    assert ended.err.count("for root alone") == 1
    said = json.loads((await ctl("save", "--all", "--json")).err)
    assert [one["pid"] for one in said["failed"]] == [UNUSED_PID, UNUSED_PID - 1]
    assert said["done"] == []


async def test_interrupted_save_restore_or_drain_of_a_gpu_says_that_nvshared_may_go_on(
        manager: Manager, ctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Daemon, "save", interrupt)
    monkeypatch.setattr(Daemon, "restore", interrupt)
    monkeypatch.setattr(Daemon, "drain_gpu", interrupt)
    a_client(manager, manager.gpus[0])
    ended = await ctl("save", "--all")
    assert ended.code == ExitCode.INTERRUPTED
    assert f"may go on to save python[{UNUSED_PID}], which then ends" in sentence(ended)
    ended = await ctl("restore", "/saved/one")
    assert ended.code == ExitCode.INTERRUPTED
    assert "may go on to restore /saved/one" in sentence(ended)
    ended = await ctl("drain", "--gpu", "0")
    assert ended.code == ExitCode.INTERRUPTED
    assert "may go on with programs that it moves now; see: " in sentence(ended)


@pytest.mark.parametrize("line", [
    "set-tq -5s", "limit 1 --memory -5GiB", "limit 1 --compute -5", "history --since -1d",
    "top -i -1", "weight 1 -.5"])
async def test_command_refuses_a_negative_value_by_its_name(ctl: Run, line: str) -> None:
    ended = await ctl(*line.split())
    assert ended.code == ExitCode.INVALID_ARGS
    assert repr(line.split()[-1]) in sentence(ended)
