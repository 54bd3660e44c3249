# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet as a client of the API server: it behaves as client-go does."""

import asyncio
import io
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared import __version__
from nvshared.kubelet import api, leaving
from nvshared.kubelet.api import LONGEST_PAUSE, RetryPause, server, watch
from nvshared.kubelet.card import NodeGPU, Offer
from nvshared.kubelet.node import LEAVING_TAINT, NodeObject
from nvshared.kubelet.pods import MOST_EVENTS, MOST_TRIES, MOST_WRITES, Writes
from nvshared.kubelet.slices import Published, covers

PODS = "/api/v1/pods"
Answer = tuple[int, Mapping[str, str], Any]     # status, headers, and an object or lines of a watch


class Script:
    """An API server that answers by a function of method and query, and counts requests."""

    def __init__(self, folder: Path, answer: Callable[[str, dict[str, str]], Answer]) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.agents: Counter[str] = Counter()
        self.bodies: list[Any] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                url = urlsplit(self.path)
                asked = {key: value[0] for key, value in parse_qs(url.query).items()}
                if size := int(self.headers.get("Content-Length", 0)):
                    script.bodies.append(json.loads(self.rfile.read(size)))
                script.requests.append((self.command, url.path, asked))
                script.agents[self.headers["User-Agent"]] += 1
                status, headers, said = answer(self.command, asked)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for line in said if isinstance(said, list) else [said]:
                    self.wfile.write(json.dumps(line).encode() + b"\n")

            do_GET = do_POST = do_PATCH = do_PUT = _handle      # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {
                "server": f"http://127.0.0.1:{self._server.server_address[1]}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}], "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}))

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


Serve = Callable[[Callable[[str, dict[str, str]], Answer]], Script]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    made: list[Script] = []

    def start(answer: Callable[[str, dict[str, str]], Answer]) -> Script:
        made.append(Script(tmp_path, answer))
        return made[-1]

    yield start
    for one in made:
        one.stop()


class Enough(BaseException):
    """Ends a thread's endless function in a test."""


def pod(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"p{number}", "resourceVersion": str(number)}}


def listed(*numbers: int, **meta: str) -> Answer:
    return 200, {}, {
        "metadata": {"resourceVersion": "9"} | meta, "items": [pod(number) for number in numbers]}


def test_pods_of_a_node_are_listed_in_pages_of_hundreds_by_the_node_name(serve: Serve) -> None:
    def answer(_: str, asked: dict[str, str]) -> Answer:
        return listed(0, 1) if "continue" in asked else listed(*range(500), **{"continue": "more"})

    script = serve(answer)
    found, _ = server(script.kubeconfig).objects(PODS, "n", dict, cached=True)
    assert len(found) == 502
    first, second = (asked for _, _, asked in script.requests)
    assert first == {"fieldSelector": "spec.nodeName=n", "limit": "500", "resourceVersion": "0"}
    assert second == {"fieldSelector": "spec.nodeName=n", "limit": "500", "continue": "more"}
    assert [one.partition(" ")[0] for one in script.agents] == [f"nvshare-kubelet/{__version__}"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)))


@given(items=st.none() | st.lists(VALUES), first=VALUES, last=VALUES, chunk=st.integers(1, 40))
def test_list_of_any_content_is_read_object_by_object(
        items: Any, first: Any, last: Any, chunk: int) -> None:
    whole = {"metadata": first, "items": items, "kind": last}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(api, "CHUNK", chunk)
        for text in (json.dumps(whole, ensure_ascii=False), json.dumps(whole, indent=1)):
            found = list(api._members(io.BytesIO(text.encode("utf-8", "surrogatepass"))))
            assert found == [
                ("metadata", first), *(("items", one) for one in items or ()), ("kind", last)]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"items": [1', b'{"items": [1 2]}', b'{"a" 1}'])
def test_malformed_list_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="a list"):
        list(api._members(io.BytesIO(text)))


def test_malformed_object_is_left_out_of_a_list_and_of_a_watch(
        serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: str, asked: dict[str, str]) -> Answer:
        if "watch" not in asked:
            return 200, {}, {"metadata": {"resourceVersion": "1"}, "items": [pod(1), None, {}]}
        return 200, {}, [{"type": "ADDED", "object": one} for one in (
            {"metadata": {"resourceVersion": "2"}}, pod(3))]

    script = serve(answer)
    _, found = watched(script, monkeypatch, 1, lambda one: one["metadata"]["name"])
    assert found == [("LISTED", ["p1"]), ("ADDED", "p3")]


def watched(
    script: Script, monkeypatch: pytest.MonkeyPatch, number: int,
    read: Callable[[Any], Any] = dict,
) -> tuple[list[float], list[tuple[str, Any]]]:
    """The first pauses of watch(), which are not waited for, and the events until then."""
    pauses: list[float] = []
    events: list[tuple[str, Any]] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == number:
            raise Enough

    monkeypatch.setattr("nvshared.kubelet.api.time.sleep", sleep)
    with pytest.raises(Enough):
        watch("it", script.kubeconfig, PODS, "n", True, read, lambda *one: events.append(one))
    return pauses, events


@pytest.mark.parametrize("refused", [
    (503, {}, {"message": "busy"}),
    (200, {}, [{"type": "ERROR", "object": {"code": 410, "message": "too old"}}]),
    (200, {}, [{"type": "ERROR", "object": {"code": 500}}]),
    (200, {}, []),                                  # the watch ends at once
])
def test_pauses_between_attempts_grow_whatever_the_api_server_answers(
        serve: Serve, monkeypatch: pytest.MonkeyPatch, refused: Answer) -> None:
    script = serve(lambda _, asked: refused if "watch" in asked else listed(1))
    pauses, _ = watched(script, monkeypatch, 8)
    least = [min(0.8 * 2 ** number, LONGEST_PAUSE) for number in range(8)]
    assert all(low <= one <= 2 * low for low, one in zip(least, pauses, strict=True))
    assert watched(script, monkeypatch, 8)[0] != pauses         # spread at random


def test_watch_that_fails_again_after_a_list_is_logged_again(
        serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    busy: Answer = 503, {}, {"message": "busy"}
    answers = iter([busy, busy, listed(1), busy, busy])
    watched(serve(lambda *_: next(answers)), monkeypatch, 4)
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"]


@pytest.mark.parametrize(("refused", "least"), [
    ((429, {"Retry-After": "70"}, {"message": "later"}), 70),
    ((200, {}, [{"type": "ERROR", "object": {"details": {"retryAfterSeconds": 70}}}]), 70),
    ((503, {"Retry-After": "999999"}, {}), 300),                # bounded
])
def test_retry_after_of_the_api_server_is_heeded(
        serve: Serve, monkeypatch: pytest.MonkeyPatch, refused: Answer, least: float) -> None:
    script = serve(lambda _, asked: refused if "watch" in asked else listed(1))
    ((pause,), _) = watched(script, monkeypatch, 1)
    assert least <= pause <= 2 * least


def test_watch_goes_on_after_a_failure_and_lists_again_only_when_its_version_is_too_old(
        serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[Answer] = iter([
        (200, {}, [{"type": "ADDED", "object": pod(11)}]), (503, {}, {}),
        (200, {}, [{"type": "BOOKMARK", "object": pod(12)}]), (410, {}, {"message": "expired"}),
        (200, {}, [{"type": "MODIFIED", "object": pod(13)}])])
    script = serve(lambda _, asked: next(answers, (503, {}, {})) if "watch" in asked else listed(7))
    _, events = watched(script, monkeypatch, 6)
    asked = [one.get("resourceVersion", "") for _, _, one in script.requests]
    #        list  watches                        list  watches
    assert asked == ["0", "9", "11", "11", "12", "", "9", "13"]
    assert [event for event, _ in events] == ["LISTED", "ADDED", "LISTED", "MODIFIED"]


def test_server_that_accepts_and_does_not_speak_delays_no_watch_for_its_whole_length(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = api.APIServer(f"https://127.0.0.1:{silent.getsockname()[1]}", token="t")
        with pytest.raises(TimeoutError):
            next(one.events(PODS, "n", dict, "1"))


def test_leaving_waits_no_longer_than_its_patience_for_an_api_server_that_is_slow(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "PAUSE", 0.001)
    calls: list[None] = []

    def is_reached() -> bool:
        time.sleep(0.01)
        calls.append(None)
        return False

    asyncio.run(leaving._until(is_reached, 0.5))
    assert 1 <= len(calls) <= 50


def test_pauses_are_short_again_after_a_calm_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("nvshared.kubelet.api.time.monotonic", lambda: now)
    pause = RetryPause()
    assert [pause.seconds() for _ in range(9)][-1] >= LONGEST_PAUSE
    now += 1000
    assert pause.seconds() <= 1.6


def test_resource_slice_refused_or_lost_is_written_again(
        serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvshared.kubelet.api.SPREAD.uniform", lambda *_: 0.001)
    slices: list[dict[str, Any]] = []
    tries = 0

    def answer(method: str, asked: dict[str, str]) -> Answer:
        nonlocal tries
        if method == "POST":
            tries += 1
            if tries < 3:
                return 503, {}, {"message": "busy"}
            slices.append(next(
                one for one in reversed(script.bodies) if one.get("kind") == "ResourceSlice"))
        elif "watch" in asked:
            return 503, {}, {}
        elif "fieldSelector" in asked:
            return 200, {}, {"metadata": {"resourceVersion": "1"}, "items": slices}
        return 200, {}, {"metadata": {"name": "n", "uid": "u"}}

    script = serve(answer)
    offer = Offer([("", 1)])
    offer.update((NodeGPU("GPU-1", 0, "00000000:17:00.0"),))
    published = Published(script.kubeconfig, "n", lambda _: None)
    for number in (3, 4):
        while tries < number or not published.has_slice:
            published.publish(offer)
            time.sleep(0.01)
        assert [one["name"] for one in slices[0]["spec"]["devices"]] == ["gpu-1"]
        published.publish(offer)            # nothing new
        slices.clear()
        published._update("LISTED", [])
    assert tries == 4


def test_slice_whose_devices_the_api_server_does_not_share_is_not_written_and_gives_the_reason(
        serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server without a feature stores the object, and drops the feature's fields."""
    monkeypatch.setattr("nvshared.kubelet.api.SPREAD.uniform", lambda *_: 0.001)
    knows = False

    def answer(method: str, asked: dict[str, str]) -> Answer:
        if method == "POST":
            made = next(
                one for one in reversed(script.bodies) if one.get("kind") == "ResourceSlice")
            for device in made["spec"]["devices"] if not knows else ():
                del device["allowMultipleAllocations"]
            return 201, {}, made
        return 200, {}, {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}

    offer = Offer([("", 1)])
    offer.update((NodeGPU("GPU-1", 0, "00000000:17:00.0"),))
    script = serve(answer)
    published = Published(script.kubeconfig, "n", lambda _: None)
    published.publish(offer)
    while not published.problem:
        time.sleep(0.01)
    assert "the feature gate DRAConsumableCapacity" in published.problem
    assert [published.has_slice] == [False]
    knows = True                        # the cluster's administrator has switched it on
    while not published.has_slice:
        published.publish(offer)
        time.sleep(0.01)
    assert published.problem == ""


def test_writes_that_the_api_server_refuses_delay_no_others(
        serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write `never` is refused for good, `each` each time, `busy` and `token` once."""
    monkeypatch.setattr("nvshared.kubelet.api.SPREAD.uniform", lambda *_: 0.001)
    counts: Counter[str] = Counter()
    done = threading.Event()

    def answer(_: str, asked: dict[str, str]) -> Answer:
        counts[asked["of"]] += 1
        if counts["each"] == MOST_TRIES and counts["last"]:
            done.set()
        status = {"never": 403, "each": 500, "busy": 429, "token": 401}.get(asked["of"], 201)
        is_again = asked["of"] in ("busy", "token") and counts[asked["of"]] > 1
        return 201 if is_again else status, {}, {}

    writes = Writes(serve(answer).kubeconfig)
    for name in ("never", "each", "busy", "token", "last"):
        writes.put(name, name, "POST", f"/it?of={name}", {})
    assert done.wait(60)
    assert counts == {"never": 1, "each": MOST_TRIES, "busy": 2, "token": 2, "last": 1}


def test_events_of_an_object_and_waiting_writes_are_bounded(tmp_path: Path) -> None:
    writes = Writes(tmp_path / "none")
    assert sum(writes.may_write_event("u") for _ in range(100)) == MOST_EVENTS
    assert writes.may_write_event("other")
    for number in range(2 * MOST_WRITES):
        writes.put(number, "it", "POST", "/it", {})
    assert len(writes._pending) == MOST_WRITES


def test_taint_is_added_and_removed_beside_those_that_others_change_meanwhile(serve: Serve) -> None:
    other = {"key": "other", "effect": "NoExecute"}
    node: dict[str, Any] = {
        "metadata": {"resourceVersion": "1", "name": "n"}, "spec": {"taints": [other]}}

    def answer(method: str, _: dict[str, str]) -> Answer:
        version = node["metadata"]["resourceVersion"]
        if method == "PATCH":
            said = script.bodies[-1]
            if version == "1" or said["metadata"]["resourceVersion"] != version:
                node["metadata"]["resourceVersion"] = "2"       # changed after it was read
                return 409, {}, {"message": "modified"}
            node["spec"] = said["spec"]
        return 200, {}, node

    script = serve(answer)
    one = NodeObject(script.kubeconfig, "n")
    one.set_taint(is_leaving=True)
    assert node["spec"]["taints"] == [other, LEAVING_TAINT]
    one.set_taint(is_leaving=True)
    one.set_taint(is_leaving=False)
    assert node["spec"]["taints"] == [other]


def test_slice_with_the_api_servers_defaults_covers_what_is_wanted() -> None:
    wanted = [{"name": "a", "taints": [], "capacity": {"memory": {"value": "1073741824"}}}]
    there = {"name": "a", "capacity": {"memory": {"value": "1Gi", "more": 1}}, "new": True}
    assert covers([there], wanted)
    for wrong in ([], [there, there], [there | {"name": "b"}],
                  [there | {"taints": [LEAVING_TAINT]}],
                  [there | {"capacity": {"memory": {"value": "2Gi"}}}], None):
        assert not covers(wrong, wanted)
