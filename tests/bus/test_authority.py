# SPDX-License-Identifier: Apache-2.0
"""Permissions of D-Bus callers, with polkit and without."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from nvshared.bus import dispatch
from nvshared.bus.dispatch import Caller
from nvshared.dbus import Received
from nvshared.machine import subordinate
from nvshared.names import LOG_CONTROL_INTERFACE, LOG_CONTROL_PATH, MANAGER_INTERFACE, MANAGER_PATH
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND
from tests.bus.service import OTHER_UID, PROPERTIES, Peeper, PrivateBus, peeper, published
from tests.bus.test_calls import STANDARD, refusal

NOBODY_UID = 65534                          # a user that every system has


class Polkit(Peeper):
    def __init__(self, bus: MessageBus) -> None:
        super().__init__(bus)
        self.granted, self.challenge = False, False
        self.silent = self.hangs = False
        self.agent: Path | None = None  # a password agent runs while this file exists
        self.was_asked, self.was_cancelled = asyncio.Event(), asyncio.Event()
        self.pending: dict[str, Message] = {}       # unanswered checks, by cancellation id
        self.asked: list[tuple[str | None, str, int]] = []  # caller, action and flags of each check
        bus.add_message_handler(self._answer)

    def _answer(self, message: Message) -> Message | bool:
        if message.member == "CancelCheckAuthorization":
            if self.hangs:
                return True
            cancelled = self.pending.pop(message.body[0])
            self.bus.send(Message.new_error(
                cancelled, "org.freedesktop.PolicyKit1.Error.Cancelled", "it was cancelled"))
            self.was_cancelled.set()
            return True
        if message.member != "CheckAuthorization":
            return False
        assert message.signature == "(sa{sv})sa{ss}us"
        (kind, details), action, _, flags, name = message.body
        assert kind == "system-bus-name"
        self.asked.append((details["name"].value, action, flags))
        self.was_asked.set()
        if self.silent:
            self.pending[name] = message
            return True
        asked = flags and self.agent is not None and self.agent.exists()
        result = [self.granted or bool(asked), self.challenge, {}]
        return Message.new_method_return(message, "(bba{ss})", [result])


@contextlib.asynccontextmanager
async def polkit_on(address: str) -> AsyncIterator[Polkit]:
    polkit = Polkit(await MessageBus(bus_address=address).connect())
    await polkit.bus.request_name("org.freedesktop.PolicyKit1")
    try:
        yield polkit
    finally:
        await polkit.close()


CHANGES = [
    ("SetTQ", "u", [5], "com.nvshare.set-tq"),
    ("SetGPUTQ", "su", ["0", 5], "com.nvshare.set-tq"),
    ("SetTQAuto", "", [], "com.nvshare.set-tq"),
    ("SetGPUTQAuto", "s", ["0"], "com.nvshare.set-tq"),
    ("SetAntiThrash", "s", ["on"], "com.nvshare.set-anti-thrash"),
    ("SetPolicy", "s", ["fifo"], "com.nvshare.set-policy"),
    ("SetGPUPolicy", "ss", ["0", "fifo"], "com.nvshare.set-policy"),
    ("SetGPUAntiThrash", "ss", ["0", "on"], "com.nvshare.set-anti-thrash"),
    ("Reload", "", [], "com.nvshare.reload"),
    ("ResetSettings", "", [], "com.nvshare.reload"),
    ("SetTenantTerms", "sa{sv}", ["user:a", {"weight": Variant("u", 3)}],
     "com.nvshare.manage-clients"),
    ("SetPods", "a(sssa{ss})", [[]], "com.nvshare.name-pods"),
    ("ReportFault", "ss", ["kubelet-unreached", "gone"], "com.nvshare.name-pods"),
]


@pytest.mark.parametrize(("member", "signature", "body", "action"), CHANGES)
async def test_dbus_call_that_changes_a_setting_succeeds_only_with_polkits_permission(
        manager: Manager, caller: Peeper, private: PrivateBus, member: str, signature: str,
        body: list[object], action: str) -> None:
    before = manager.settings
    async with polkit_on(private.address) as polkit:
        name, sentence = refusal(await caller.call(member, signature, body))
        assert name == STANDARD + "AccessDenied"
        assert f"{action} is not permitted to uid {OTHER_UID}" in sentence
        assert manager.settings == before
        polkit.granted = True
        reply = await caller.call(member, signature, body)
        assert reply.message_type is MessageType.METHOD_RETURN
        assert polkit.asked == [(caller.bus.unique_name, action, 0)] * 2


async def test_dbus_call_without_interaction_is_refused_when_polkit_needs_a_password(
        caller: Peeper, private: PrivateBus) -> None:
    async with polkit_on(private.address) as polkit:
        polkit.challenge = True
        name, _ = refusal(await caller.call("SetTQ", "u", [5]))
        assert name == STANDARD + "InteractiveAuthorizationRequired"
        # With interaction allowed, the user was asked and did not know the password.
        flags = int(MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)
        name, _ = refusal(await caller.call("SetTQ", "u", [5], flags=flags))
        assert name == STANDARD + "AccessDenied"
        assert [flags for _, _, flags in polkit.asked] == [0, 1]


async def test_dbus_call_that_changes_a_setting_is_refused_to_users_while_polkit_is_absent(
        manager: Manager, caller: Peeper) -> None:
    name, sentence = refusal(await caller.call("SetTQ", "u", [5]))
    assert name == STANDARD + "AccessDenied"
    assert "polkit" in sentence
    assert manager.tq == 30 * SECOND


async def test_dbus_call_that_is_not_permitted_is_refused_before_the_arguments_are_read(
        caller: Peeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may send nested variants, which the daemon takes long to decode."""
    read: list[str] = []
    values = Received.values

    def noted(self: Received) -> list[Any]:
        if self.message.message_type is MessageType.METHOD_CALL:
            read.append(self.message.member)
        return values(self)

    monkeypatch.setattr(Received, "values", noted)
    variants = Variant("av", [Variant("y", 1)] * 1000)
    for member, signature, body, path, interface in (
        ("SetTenantTerms", "sa{sv}", ["user:x", {"a": variants}], MANAGER_PATH, MANAGER_INTERFACE),
        ("Set", "ssv", [LOG_CONTROL_INTERFACE, "LogLevel", variants], LOG_CONTROL_PATH, PROPERTIES),
        ("Set", "ssv", [MANAGER_INTERFACE, "TQ", variants], MANAGER_PATH, PROPERTIES),
        ("Get", "v", [variants], MANAGER_PATH, PROPERTIES),
        ("SetTQ", "v", [variants], MANAGER_PATH, MANAGER_INTERFACE),
    ):
        refusal(await caller.call(member, signature, body, path=path, interface=interface))
    assert read == []
    assert len(await caller.result("ListGPUs")) == 2
    assert read == ["ListGPUs"]


async def test_dbus_call_that_waits_for_polkit_delays_no_other_call_and_is_refused_at_stop(
        manager: Manager, private: PrivateBus, other_user: None,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
    monkeypatch.setattr("nvshared.bus.dispatch.PATIENCE", 0.01)
    async with peeper(private.address) as caller, polkit_on(private.address) as polkit:
        async with published(manager, "system"):
            polkit.silent = True
            slow = asyncio.ensure_future(caller.call("SetTQ", "u", [5]))
            await polkit.was_asked.wait()
            assert len(await caller.result("ListGPUs")) == 2    # another call is not delayed
            assert not slow.done()
        name, sentence = refusal(await slow)
        assert name == STANDARD + "ServiceUnknown"
        assert sentence == "nvshared is stopping"
        assert manager.tq == 30 * SECOND


PASSWORD = int(MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION)


async def all_asked(polkit: Polkit) -> None:
    """Wait until pending polkit checks reach the limit per user; assert that none is beyond."""
    while len(polkit.asked) < dispatch.CHECKS_EACH_USER:
        polkit.was_asked.clear()        # calls may be refused before polkit is asked
        await polkit.was_asked.wait()
    assert len(polkit.asked) == dispatch.CHECKS_EACH_USER


async def refused(calls: list[asyncio.Task[Message]], number: int) -> None:
    while sum(call.done() for call in calls) < number:
        await asyncio.wait(
            [call for call in calls if not call.done()], return_when=asyncio.FIRST_COMPLETED)
    for call in calls:
        if call.done():
            assert refusal(call.result())[0] == STANDARD + "LimitsExceeded"


def change(caller: Peeper, number: int) -> list[asyncio.Task[Message]]:
    return [
        asyncio.ensure_future(caller.call("SetTQ", "u", [5], flags=PASSWORD))
        for _ in range(number)]


async def test_pending_polkit_checks_of_a_user_and_the_users_subuids_have_a_common_limit(
        manager: Manager, private: PrivateBus, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "subuid").write_text("alice:100000:65536\n")
    monkeypatch.setattr(subordinate, "FILE", tmp_path / "subuid")
    users: dict[str, int] = {}

    async def uid(caller: Caller) -> int:
        return users.setdefault(caller.name, 100_000 + len(users))

    monkeypatch.setattr(Caller, "uid", uid)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", private.address)
    async with (
        polkit_on(private.address) as polkit, published(manager, "system"),
        peeper(private.address) as first, peeper(private.address) as second,
        peeper(private.address) as administrator,
    ):
        polkit.silent = True
        users[administrator.bus.unique_name or ""] = OTHER_UID + 1
        calls = change(first, dispatch.CHECKS_EACH_USER - 2)
        calls += change(second, 4)
        await refused(calls, 2)
        await all_asked(polkit)
        polkit.silent, polkit.granted = False, True
        reply = await administrator.call("SetTQ", "u", [7])
        assert reply.message_type is MessageType.METHOD_RETURN
        assert manager.tq == 7 * SECOND
        for call in calls:
            call.cancel()


async def test_polkit_checks_of_a_disconnected_caller_are_cancelled(
    manager: Manager, caller: Peeper, private: PrivateBus, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nvshared.bus.dispatch.PRESENCE_INTERVAL", 0.01)
    async with polkit_on(private.address) as polkit:
        polkit.silent = True
        for _ in range(3):              # three times as many checks as a user may have pending
            polkit.was_cancelled.clear()
            async with peeper(private.address) as leaver:
                calls = change(leaver, dispatch.CHECKS_EACH_USER)
                while len(polkit.pending) < dispatch.CHECKS_EACH_USER:
                    await polkit.was_asked.wait()
                    polkit.was_asked.clear()
            while polkit.pending:
                await polkit.was_cancelled.wait()
                polkit.was_cancelled.clear()
            for call in calls:
                call.cancel()
        polkit.silent, polkit.granted = False, True
        assert (await caller.call("SetTQ", "u", [7])).message_type is MessageType.METHOD_RETURN


async def test_cancelled_polkit_check_counts_as_pending_until_polkit_answers(
        caller: Peeper, private: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.bus.dispatch.POLKIT_PATIENCE", 0.01)
    async with polkit_on(private.address) as polkit:
        polkit.silent = polkit.hangs = True
        for _ in range(dispatch.CHECKS_EACH_USER):
            assert refusal(await caller.call("SetTQ", "u", [5]))[0] == STANDARD + "AccessDenied"
        assert refusal(await caller.call("SetTQ", "u", [5]))[0] == STANDARD + "LimitsExceeded"
        monkeypatch.setattr("nvshared.bus.dispatch.POLKIT_PATIENCE", 60.0)
        polkit.silent, polkit.granted = False, True
        for message in polkit.pending.values():
            await polkit.bus.send(Message.new_method_return(
                message, "(bba{ss})", [[False, False, {}]]))
        await caller.result("ListGPUs")     # after this reply the daemon has read polkit's replies
        assert (await caller.call("SetTQ", "u", [5])).message_type is MessageType.METHOD_RETURN


async def test_dbus_call_of_another_user_on_a_private_bus_is_refused_without_asking_polkit(
        manager: Manager, private: PrivateBus, other_user: None) -> None:
    async with (
        polkit_on(private.address) as polkit,
        published(manager, private.address),
        peeper(private.address) as caller,
    ):
        polkit.granted = True           # on a private bus any process can own polkit's name
        name, _ = refusal(await caller.call("SetTQ", "u", [5]))
        assert name == STANDARD + "AccessDenied"
        assert not polkit.asked


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_user_that_did_not_start_the_daemon_may_change_nothing(
        other: Peeper, manager: Manager, private: PrivateBus) -> None:
    process = await asyncio.create_subprocess_exec(
        "dbus-send", f"--bus={private.address}", "--dest=com.nvshare", "--print-reply",
        "/com/nvshare", "com.nvshare.Manager.SetTQ", "uint32:5", stderr=asyncio.subprocess.PIPE,
        user=NOBODY_UID, extra_groups=[])
    _, errors = await process.communicate()
    assert "AccessDenied" in errors.decode()
    assert f"uid {NOBODY_UID}" in errors.decode()
    assert manager.tq == 30 * SECOND


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_user_with_a_name_that_root_had_before_the_bus_restarted_may_change_nothing(
        manager: Manager, private: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.bus.publication.RETRY", 0.01)
    async with published(manager, private.address) as publication:
        async with peeper(private.address) as root:
            await root.result("ListGPUs")
            assert str(root.bus.unique_name) == ":1.1"
        lost = publication._connection
        assert lost is not None
        private.stop()
        await asyncio.wait([lost.reading])
        private.start()
        while publication._connection in (lost, None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        process = await asyncio.create_subprocess_exec(
            "dbus-send", f"--bus={private.address}", "--dest=com.nvshare", "--print-reply",
            "/com/nvshare", "com.nvshare.Manager.SetTQ", "uint32:5",
            stderr=asyncio.subprocess.PIPE, user=NOBODY_UID, extra_groups=[])
        _, errors = await process.communicate()
    assert f"uid {NOBODY_UID}" in errors.decode()
    assert manager.tq == 30 * SECOND
