# SPDX-License-Identifier: Apache-2.0
"""An API server for one node with pods, claims and ResourceSlices: HTTP over a real socket.

It lists and watches objects as Kubernetes does, a few in each answer, and stores events and
conditions of pods. It refuses requests without the token, for another node, or without a right of
the account in our manifests.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import yaml

from nvshared.kubelet.claims import REFUSED_CONDITION
from tests.integration.conftest import ROOT
from tests.integration.fakehook import PATIENCE

PODS = "/api/v1/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims/"
# Parts of a path: the group, the resource, an object's name, and its subresource.
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/[^/]+)?/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?P<part>/[a-z]+)?)?")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
PAGE = 2                                # maximum number of objects in an answer
NODE, TOKEN = "thisnode", "secret"
UID = "5e5e5e5e-0000-4000-8000-00000000000"


Right = tuple[str, str, str]            # API group, resource and verb


def granted(*folders: str) -> set[Right]:
    """The rights that the manifests of these folders give to nvshare-kubelet."""
    files = [ROOT / "packaging" / "kubernetes" / name / "account.yaml" for name in folders]
    return {
        (group, resource, verb)
        for file in files for one in yaml.safe_load_all(file.read_text())
        for rule in one.get("rules", ())
        for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
    }


class ApiServer:
    """Runs until it is stopped; start() restarts it."""

    def __init__(self, folder: Path, *manifests: str) -> None:
        """`manifests`: folders of packaging/kubernetes that are applied beside "common"."""
        self.rights = granted("common", *manifests)
        self.used: set[Right] = set()
        self.pods: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}    # by name, also malformed claims
        self.gate = threading.Lock()        # a test that locks the gate delays answers about claims
        self.asked = threading.Semaphore(0)
        self.events: list[dict[str, Any]] = []          # events about pods
        self.labels: dict[str, str] = {}    # labels, taints and status of the node
        self.taints: list[dict[str, str]] = []
        self.status: dict[str, Any] = {}
        self.node_versions = 1              # changes of the node
        self.agents: set[str] = set()       # User-Agents of all requests
        self.node_events: list[dict[str, Any]] = []
        self.news = threading.Condition()
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.oldest = 0                 # a watch from an earlier version must list again
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
        handler = type("Bound", (Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        self.runs = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        with self.news:
            self.runs = False
            self.news.notify_all()
        self._server.shutdown()
        self._server.server_close()     # waits for the threads of requests
        self._thread.join()

    def annotate(self, name: str, **annotations: str | None) -> None:
        """Changes annotations as `kubectl annotate` does, and creates the pod if it is absent.

        In a name _ stands for a hyphen. The value None removes an annotation.
        """
        self.write(name, {
            f"nvshare.com/{key.replace('_', '-')}": text for key, text in annotations.items()})

    def write(self, name: str, annotations: Mapping[str, str | None], **spec: Any) -> None:
        """As annotate(), with full names of annotations; a new pod gets `spec`."""
        known = name in self.pods
        pod = self.pods.setdefault(name, {
            "name": name, "namespace": "lab", "uid": f"{UID}{len(self.pods)}", "annotations": {},
            "spec": spec,
        })
        for key, text in annotations.items():
            pod["annotations"].pop(key, None)
            if text is not None:
                pod["annotations"][key] = text
        self._tell("MODIFIED" if known else "ADDED", pod)

    def conclude(self, name: str, *conditions: dict[str, Any]) -> None:
        """Adds conditions to a pod's status; they replace conditions of the same types."""
        status = self.pods[name].setdefault("status", {})
        status["conditions"] = merged(status.get("conditions", ()), conditions)
        self._tell("MODIFIED", self.pods[name])

    def condition(self, name: str) -> tuple[str, str, str]:
        """Status, message and reason of a pod's condition about annotations; "" if it is absent."""
        conditions = self.pods[name].get("status", {}).get("conditions", [])
        found = next((one for one in conditions if one["type"] == REFUSED_CONDITION),
                     {"status": "", "message": "", "reason": ""})
        return found["status"], found["message"], found["reason"]

    def delete(self, name: str) -> None:
        self._tell("DELETED", self.pods.pop(name))

    def tenant(self, name: str) -> str:
        return f"pod:{self.pods[name]['uid']}"

    def forget(self) -> None:
        """Ends all watches: a client must list the objects again."""
        with self.news:
            self.version += 1
            self.oldest = self.version
            self.news.notify_all()

    def event(self, number: int) -> dict[str, Any]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.events) > number, PATIENCE)
        return self.events[number]

    def put_slice(self, one: dict[str, Any], kind: str = "ADDED") -> dict[str, Any]:
        """Stores a resource slice as another writer would; returns it with its new version."""
        with self.news:
            one["metadata"]["resourceVersion"] = str(self.version + 1)
            self.slices[one["metadata"]["name"]] = one
            self._tell(kind, one, SLICES)
        return one

    def remove_slice(self, name: str) -> None:
        with self.news:
            self._tell("DELETED", self.slices.pop(name), SLICES)

    def _tell(self, kind: str, document: dict[str, Any], path: str = PODS) -> None:
        with self.news:
            self.version += 1
            one = _shown(document) if path == PODS else document
            one["metadata"]["resourceVersion"] = str(self.version)
            self.history.append((self.version, path, kind, json.loads(json.dumps(one))))
            self.news.notify_all()

    def listed(self, path: str) -> list[dict[str, Any]]:
        return [*map(_shown, self.pods.values())] if path == PODS else [*self.slices.values()]


def merged(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Conditions, of which new ones replace old ones of the same type."""
    return [*{one["type"]: one for one in (*old, *new)}.values()]


def _shown(pod: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in pod.items() if key not in ("spec", "status")}
    return {"metadata": meta, "spec": pod.get("spec", {}), "status": pod.get("status", {})}


class Handler(BaseHTTPRequestHandler):
    api: ClassVar[ApiServer]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {key: value[0] for key, value in parse_qs(url.query).items()}
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self._refuse(401, "Unauthorized")
        if not self._may():
            return None
        if url.path == f"/api/v1/nodes/{NODE}":
            return self._answer(self._node())
        if url.path.startswith(CLAIMS):
            name = url.path.removeprefix(CLAIMS)
            self.api.asked.release()
            with self.api.gate:
                pass
            if name not in self.api.claims:
                return self._refuse(404, f'resourceclaims "{name}" not found')
            return self._answer(self.api.claims[name])
        if url.path not in (PODS, SLICES) or asked["fieldSelector"] != f"spec.nodeName={NODE}":
            return self._refuse(403, "pods is forbidden: you are another node")
        self.send_response(200)
        self.end_headers()
        if "watch" in asked:
            return self._watch(url.path, int(asked["resourceVersion"]))
        with self.api.news:
            found, begin = self.api.listed(url.path), int(asked.get("continue", 0))
            end = begin + min(PAGE, int(asked["limit"]))
            self._say({
                "metadata": {
                    "resourceVersion": str(self.api.version),
                    **({"continue": str(end)} if end < len(found) else {}),
                },
                # Kubernetes sends null in place of an empty list.
                "items": found[begin:end] or None,
            })
        return None

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return None
        if self.path == SLICES:
            if said["metadata"]["name"] in self.api.slices:
                return self._refuse(409, "already exists")
            return self._answer(self.api.put_slice(said))
        is_of_node = self.path == "/api/v1/namespaces/default/events"
        assert is_of_node or self.path == "/api/v1/namespaces/lab/events"
        with self.api.news:
            (self.api.node_events if is_of_node else self.api.events).append(said)
            self.api.news.notify_all()
        self.send_response(201)
        self.end_headers()
        return None

    def do_PUT(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return None
        old = self.api.slices.get(self.path.removeprefix(f"{SLICES}/"))
        if old is None:
            return self._refuse(404, "not found")
        if said["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            return self._refuse(409, "the object has been modified")
        return self._answer(self.api.put_slice(said, "MODIFIED"))

    def do_PATCH(self) -> None:
        """Changes the node's labels, taints and conditions, or conditions of a pod's status."""
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return None
        assert self.headers["Content-Type"] == "application/strategic-merge-patch+json"
        if self.path.startswith(f"/api/v1/nodes/{NODE}"):
            with self.api.news:
                meta = said.get("metadata", {})
                version = str(self.api.node_versions)
                if meta.get("resourceVersion", version) != version:
                    return self._refuse(409, "the object has been modified")
                self.api.node_versions += 1
                for key, value in meta.get("labels", {}).items():
                    self.api.labels.pop(key, None)
                    if value is not None:
                        self.api.labels[key] = value
                if self.path.endswith("/status"):
                    self.api.status["conditions"] = merged(
                        self.api.status.get("conditions", ()), said["status"]["conditions"])
                self.api.taints = said.get("spec", {}).get("taints", self.api.taints)
                self.api.news.notify_all()
            return self._answer(self._node())
        name = self.path.removeprefix("/api/v1/namespaces/lab/pods/").removesuffix("/status")
        with self.api.news:
            if name not in self.api.pods:
                return self._refuse(404, "not found")
            if said["metadata"]["uid"] != self.api.pods[name]["uid"]:
                return self._refuse(409, "the UID in the precondition does not match")
            self.api.conclude(name, *said["status"]["conditions"])
        return self._answer({})

    def _node(self) -> dict[str, Any]:
        return {
            "metadata": {
                "name": NODE, "uid": "of-the-node", "labels": dict(self.api.labels),
                "resourceVersion": str(self.api.node_versions)},
            "spec": {"taints": [*self.api.taints]}, "status": dict(self.api.status)}

    def _may(self) -> bool:
        """Whether the account has the right; records the request."""
        self.api.agents.add(self.headers["User-Agent"])
        url = urlsplit(self.path)
        match = PATH.fullmatch(url.path)
        assert match, self.path
        verb = VERBS.get(self.command) or (
            "get" if match["name"] else "watch" if "watch=1" in url.query else "list")
        right = match["group"] or "", match["resource"] + (match["part"] or ""), verb
        if right not in self.api.rights:
            self._refuse(403, f"pods is forbidden: the account may not {right}")
            return False
        self.api.used.add(right)
        return True

    def _watch(self, path: str, version: int) -> None:
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
            for _, url, kind, one in news:
                if url == path:
                    self._say({"type": kind, "object": one})
            version = news[-1][0]

    def _last(self) -> int:
        return self.api.history[-1][0] if self.api.history else 0

    def _answer(self, document: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self._say(document)

    def _refuse(self, code: int, message: str) -> None:
        self.send_response(code)
        self.end_headers()
        self._say({"kind": "Status", "message": message})

    def _say(self, document: Any) -> None:
        self.wfile.write(json.dumps(document).encode() + b"\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
