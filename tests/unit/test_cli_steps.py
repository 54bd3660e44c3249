# SPDX-License-Identifier: Apache-2.0
"""Messages about a command of several changes when one fails or gets no reply."""

from collections.abc import Callable

import pytest

from nvshared.cli.main import VERBS, build
from nvshared.cli.settings import SettingStep, carry_out, reset
from nvshared.control import Daemon
from nvshared.control.connection import ControlConnection
from nvshared.errors import ExitCode, NotKept, NotPermitted, NvshareError

NAMES = {"m": "memory limit", "c": "compute limit", "w": "weight"}


def failing(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def unanswered() -> NvshareError:
    error = NvshareError("no answer")
    error.answered = False
    return error


@pytest.mark.parametrize(("line", "at", "error", "message"), [
    ("m0 m1", 0, NotPermitted("no"), "no"),
    ("m0 m1 c0", 2, NotPermitted("no"),
     "no (done: memory limit on GPU 0, memory limit on GPU 1; "
     "not done: compute limit on GPU 0)"),
    ("m0", 0, unanswered(), "no answer"),
    ("m0 m1 w2", 1, unanswered(),
     "no answer (done: memory limit on GPU 0; perhaps done: memory limit on GPU 1; "
     "not done: weight on GPU 2)"),
    ("m0 m1", 1, KeyboardInterrupt(),
     "interrupted, but nvshared may go on with it (done: memory limit on GPU 0; perhaps done: "
     "memory limit on GPU 1)"),
    ("m0", 0, KeyboardInterrupt(), "interrupted, but nvshared may go on with it"),
    ("m0 c0", 0, NotKept("not kept"),
     "not kept (done: memory limit on GPU 0; not done: compute limit on GPU 0)"),
    ("m0 c0", 1, NotKept("not kept"), "not kept"),
])
def test_command_of_several_steps_names_the_steps_done_and_not_done_when_a_step_fails(
        line: str, at: int, error: BaseException, message: str) -> None:
    steps = [
        SettingStep(NAMES[one[0]], {"gpu": int(one[1]), "of": one[0]}, lambda: None)
        for one in line.split()]
    steps[at] = steps[at]._replace(act=failing(error))
    with pytest.raises(NvshareError) as caught:
        carry_out(steps)
    assert str(caught.value) == message
    parts = caught.value.details
    assert [*parts["done"], *parts["unknown"], *parts["not_done"]] == [one.data for one in steps]
    if isinstance(error, KeyboardInterrupt):
        assert caught.value.exit_code is ExitCode.INTERRUPTED


def test_reset_command_is_reported_as_done_when_the_new_values_cannot_be_read(
        monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ControlConnection, "__init__", lambda _self, _bus, _patience: None)
    monkeypatch.setattr(Daemon, "close", lambda _self: None)
    monkeypatch.setattr(Daemon, "reset_settings", lambda _self: asked.append("reset"))
    monkeypatch.setattr(Daemon, "snapshot", lambda _self: failing(unanswered())())
    with pytest.raises(NvshareError) as caught:
        reset.act(build(VERBS).parse_args(["reset"]))
    assert asked == ["reset"]
    assert str(caught.value) == (
        "the settings are reset, but the values in force are not known: no answer")
