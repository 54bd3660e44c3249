# SPDX-License-Identifier: Apache-2.0
"""An API server as far as the pods of one node are concerned: HTTP over a real socket.

It lists and watches pods as Kubernetes does, a few in each answer, forgets old versions when it is
told to, and takes events. Whoever shows no token, or asks for another node, is sent away.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from nvshared.kubelet.pod import MIRROR, STATIC
from tests.integration.fakehook import PATIENCE

PAGE = 2                                # pods in one answer, at most
NODE, TOKEN = "thisnode", "secret"
HASH = "0a" * 16
UID = "5e5e5e5e-0000-4000-8000-00000000000"


class ApiServer:
    """One that runs until it is stopped; start it again for a restart."""

    def __init__(self, folder: Path) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.news = threading.Condition()
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.oldest = 0                 # a watch of before is told to list anew
        self.version = 1
        self._port = 0
        self.start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }))

    def start(self) -> None:
        """At the same place as before."""
        handler = type("Bound", (Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        self.runs = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Ends all conversations."""
        with self.news:
            self.runs = False
            self.news.notify_all()
        self._server.shutdown()
        self._server.server_close()     # waits for them
        self._thread.join()

    def annotate(self, name: str, **annotations: str | None) -> None:
        """As `kubectl annotate` does, with _ for what stands between words; None takes away.

        The pod is made if there is none.
        """
        known = name in self.pods
        pod = self.pods.setdefault(name, {
            "name": name, "namespace": "lab", "uid": f"{UID}{len(self.pods)}", "annotations": {},
        })
        for key, text in annotations.items():
            pod["annotations"].pop(key := f"nvshare.com/{key.replace('_', '-')}", None)
            if text is not None:
                pod["annotations"][key] = text
        self._tell("MODIFIED" if known else "ADDED", pod)

    def mirror(self, name: str) -> None:
        """A pod says that it is the static pod with this hash."""
        self.annotate(name)
        self.pods[name]["annotations"] |= dict.fromkeys((STATIC, MIRROR), HASH)
        self._tell("MODIFIED", self.pods[name])

    def run(self, name: str, *containers: str) -> None:
        """Containers of a pod have these ids, and are called c0, c1, ..."""
        pod = self.pods[name]
        pod["status"] = {"containerStatuses": [
            {"name": f"c{number}", "containerID": f"containerd://{id}"}
            for number, id in enumerate(containers)
        ] + [{"name": "waits"}]}
        self._tell("MODIFIED", pod)

    def delete(self, name: str) -> None:
        """The pod is gone."""
        self._tell("DELETED", self.pods.pop(name))

    def tenant(self, name: str) -> str:
        """What nvshared calls a pod."""
        return f"pod:{self.pods[name]['uid']}"

    def forget(self) -> None:
        """Watches go on no more from where they were."""
        with self.news:
            self.version += 1
            self.oldest = self.version
            self.news.notify_all()

    def event(self, number: int) -> dict[str, Any]:
        """The event with this number, when it is written."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.events) > number, PATIENCE)
        return self.events[number]

    def _tell(self, kind: str, pod: dict[str, Any]) -> None:
        with self.news:
            self.version += 1
            self.history.append((self.version, kind, json.loads(json.dumps(pod))))
            self.news.notify_all()


def _shown(pod: dict[str, Any], version: str = "") -> dict[str, Any]:
    meta = {key: value for key, value in pod.items() if key != "status"}
    return {"metadata": meta | {"resourceVersion": version}, "status": pod.get("status", {})}


class Handler(BaseHTTPRequestHandler):
    """One conversation."""

    api: ClassVar[ApiServer]

    def do_GET(self) -> None:
        """Lists or watches."""
        place = urlsplit(self.path)
        asked = {key: value[0] for key, value in parse_qs(place.query).items()}
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._refuse(401, "Unauthorized")
        if place.path != "/api/v1/pods" or asked["fieldSelector"] != f"spec.nodeName={NODE}":
            return self._refuse(403, "pods is forbidden: you are another node")
        self.send_response(200)
        self.end_headers()
        if "watch" in asked:
            return self._watch(int(asked["resourceVersion"]))
        with self.api.news:
            pods, begin = [*self.api.pods.values()], int(asked.get("continue", 0))
            end = begin + min(PAGE, int(asked["limit"]))
            self._say({
                "metadata": {
                    "resourceVersion": str(self.api.version),
                    **({"continue": str(end)} if end < len(pods) else {}),
                },
                # Kubernetes says null where there are none.
                "items": [_shown(pod) for pod in pods[begin:end]] or None,
            })
        return None

    def do_POST(self) -> None:
        """Takes an event."""
        assert self.path == "/api/v1/namespaces/lab/events"
        with self.api.news:
            self.api.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.api.news.notify_all()
        self.send_response(201)
        self.end_headers()

    def _watch(self, version: int) -> None:
        while True:
            with self.api.news:
                while self.api.runs and version >= max(self.api.oldest, self._last()):
                    self.api.news.wait()
                news = [one for one in self.api.history if one[0] > version]
                too_old = version < self.api.oldest
            if not self.api.runs:
                return
            if too_old:
                self._say({"type": "ERROR", "object": {"kind": "Status", "code": 410}})
                return
            for version, kind, pod in news:
                self._say({"type": kind, "object": _shown(pod, str(version))})

    def _last(self) -> int:
        return self.api.history[-1][0] if self.api.history else 0

    def _refuse(self, code: int, message: str) -> None:
        self.send_response(code)
        self.end_headers()
        self._say({"kind": "Status", "message": message})

    def _say(self, what: Any) -> None:
        self.wfile.write(json.dumps(what).encode() + b"\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Says nothing on stderr."""
