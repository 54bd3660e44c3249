# SPDX-License-Identifier: Apache-2.0
"""The browsers of JupyterHub users, which log in, start servers, open notebooks and run cells.

Runs beside the hub with JupyterHub's Python. Each line on standard input is a command in JSON,
[NUMBER, USER, VERB, ARGUMENT ...]; when it has finished, a line [NUMBER, RESULT] answers it.
"""

import asyncio
import json
import sys
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.websocket import WebSocketClientConnection, websocket_connect

SITE = "127.0.0.1:8000"
PATIENCE = 600.0                        # seconds; only a failing test waits this long
RETRY = 5.0                             # seconds from the first request to its repetition


class Browser:
    """The browser session of one user, with one open notebook."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._token = ""
        self._session: dict[str, Any] = {}
        self._channel: WebSocketClientConnection | None = None

    async def log_in(self, password: str) -> None:
        form = await self._fetch("GET", "hub/login")
        cookies = [one.partition(";")[0] for one in form.headers.get_list("Set-Cookie")]
        hidden = next(one for one in cookies if one.startswith("_xsrf="))
        given = {"username": self._user, "password": password}
        await self._fetch(
            "POST", "hub/login", f"{hidden}&{urlencode(given)}",
            {"Cookie": "; ".join(cookies)}, follow_redirects=False, raise_error=False)
        made = await self._ask("POST", f"hub/api/users/{self._user}/tokens", {"auth": given})
        self._token = made["token"]

    async def start(self) -> None:
        """Starts the user's server, and returns when the server answers."""
        await self._ask("POST", f"hub/api/users/{self._user}/server", {})
        # The response is a stream of events, which ends with the event "ready".
        path = f"hub/api/users/{self._user}/server/progress"
        text = (await self._fetch("GET", path, headers=self._rights())).body.decode()
        assert '"ready": true' in text, text

    async def open(self, file: str) -> None:
        self._session = await self._ask("POST", f"user/{self._user}/api/sessions", {
            "path": file, "name": file, "type": "notebook", "kernel": {"name": "python3"}})
        await self.connect()

    async def connect(self) -> None:
        """Connects to the notebook's kernel, also if an earlier connection was closed."""
        if self._channel is not None:
            self._channel.close()
        # Jupyter answers when the kernel has started, which may take longer than the usual 20 s.
        self._channel = await websocket_connect(HTTPRequest(
            f"ws://{SITE}/{self._kernel()}/channels?session_id={uuid.uuid4().hex}",
            headers=self._rights(), connect_timeout=PATIENCE, request_timeout=PATIENCE))
        # A kernel that is starting may lose its replies, so the request is repeated.
        patience = RETRY
        while True:
            with suppress(TimeoutError):
                if await asyncio.wait_for(self._do("kernel_info", {}), patience):
                    await self.connect()        # _do() has noticed that the connection is lost
                return
            patience *= 2

    async def run(self, code: str) -> dict[str, str]:
        """Runs a cell. Returns its output by stream, its exception, and any loss of the kernel."""
        outcome = {"stdout": "", "stderr": "", "raised": "", "lost": ""}
        outcome["lost"] = await self._do("execute", {
            "code": code, "silent": False, "store_history": False, "allow_stdin": False,
            "stop_on_error": False}, outcome)
        return outcome

    async def _do(
        self, channel: str, content: dict[str, Any], outcome: dict[str, str] | None = None
    ) -> str:
        assert self._channel is not None
        number = uuid.uuid4().hex
        await self._channel.write_message(json.dumps({
            "channel": "shell", "parent_header": {}, "metadata": {}, "buffers": [],
            "header": {"msg_id": number, "msg_type": f"{channel}_request", "version": "5.3",
                       "username": self._user, "session": self._session["id"]},
            "content": content}))
        ended: set[str] = set()
        while ended != {"status", f"{channel}_reply"}:
            message = await self._channel.read_message()
            if message is None:
                return "the connection"
            text = json.loads(message)
            kind, content = text["msg_type"], text["content"]
            if outcome is not None and content.get("execution_state") in ("restarting", "dead"):
                return "the kernel"
            if text["parent_header"].get("msg_id") != number:
                continue
            if kind == f"{channel}_reply" or content.get("execution_state") == "idle":
                ended.add(kind)
            elif kind == "stream" and outcome is not None:
                outcome[content["name"]] += content["text"]
            elif kind == "error" and outcome is not None:
                outcome["raised"] = f"{content['ename']}: {content['evalue']}"
        return ""

    def _kernel(self) -> str:
        return f"user/{self._user}/api/kernels/{self._session['kernel']['id']}"

    def _rights(self) -> dict[str, str]:
        return {"Authorization": f"token {self._token}"} if self._token else {}

    async def _ask(self, method: str, path: str, given: Any = None) -> Any:
        body = None if given is None else json.dumps(given)
        answer = await self._fetch(method, path, body, self._rights())
        return json.loads(answer.body) if answer.body else None

    async def _fetch(
        self, method: str, path: str, body: str | None = None,
        headers: dict[str, str] | None = None, **options: bool,
    ) -> HTTPResponse:
        return await AsyncHTTPClient().fetch(
            f"http://{SITE}/{path}", method=method, body=body, headers=headers,
            connect_timeout=PATIENCE, request_timeout=PATIENCE, **options)


async def main() -> None:
    browsers: dict[str, Browser] = {}
    at_work = set()

    async def answer(number: int, user: str, verb: str, *arguments: str) -> None:
        done = getattr(browsers.setdefault(user, Browser(user)), verb)(*arguments)
        try:
            result = await asyncio.wait_for(done, PATIENCE)
        except Exception as error:
            result = {"failed": f"{verb} of {user}: {type(error).__name__}: {error}"}
        print(json.dumps([number, result]), flush=True)

    while line := await asyncio.to_thread(sys.stdin.readline):
        at_work.add(asyncio.create_task(answer(*json.loads(line))))


if __name__ == "__main__":
    AsyncHTTPClient.configure(None, max_clients=100)
    asyncio.run(main())
