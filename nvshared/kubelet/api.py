# SPDX-License-Identifier: Apache-2.0
"""A client of Kubernetes' API server, by the service account or outside pods kubelet's kubeconfig.

The credentials are read again for each connection, since tokens are renewed. Pods are fetched in
full, because their status has the container ids."""

import base64
import http.client
import json
import logging
import os
import queue
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit

import yaml

from nvshared.errors import NvshareError

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 5                                # objects per response: parsing a pod takes 100 KB of memory
LISTEN = 60                             # seconds that a watch request lasts
WRITTEN = {"PATCH": "application/strategic-merge-patch+json"}
PATIENCE = 10.0                         # most seconds until a response; for a watch after LISTEN
NODES = "/api/v1/nodes"
PERIOD = 2.0                            # seconds between attempts to reach the API server
# Raised by a request: any server may answer at the address, with content of any form.
FAILURES = (
    NvshareError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError,
    AttributeError,
)
CERTIFICATE = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]*-----END [A-Z0-9 ]+-----")


class Connection(http.client.HTTPSConnection):
    """An HTTPS connection that verifies the certificate for `name`, not for the address."""

    def __init__(self, netloc: str, name: str, patience: float, context: ssl.SSLContext) -> None:
        super().__init__(netloc, timeout=patience, context=context)
        self._tls, self._name = context, name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name or self.host)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    authority: str = ""                 # CA certificates (PEM); "": the system's certificates
    certificate: bytes = b""            # certificate of nvshare-kubelet and its private key (PEM)
    token: str = ""
    name: str = ""                      # name in the server's certificate; "": the host in `url`
    is_verified: bool = True

    def ask(
        self, method: str, path: str, body: Any = None, patience: float = PATIENCE
    ) -> http.client.HTTPResponse:
        """Sends a request, returns the response. Raises NvshareError for an HTTP error; OSError."""
        url = urlsplit(self.url)
        if url.scheme == "http":
            made = http.client.HTTPConnection(url.netloc, timeout=patience)
        else:
            made = Connection(url.netloc, self.name, patience, self._context())
        headers = {
            "Accept": "application/json", "Content-Type": WRITTEN.get(method, "application/json"),
            "Connection": "close"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        made.request(method, url.path.rstrip("/") + path, body and json.dumps(body), headers)
        response = made.getresponse()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            with closing(made):
                message = response.read().decode(errors="replace")
            try:
                message = json.loads(message)["message"]
            except (ValueError, KeyError, TypeError):
                message = message.strip()[:200] or response.reason
            raise NvshareError(f"{url.netloc} answers {response.status}: {message}")
        return response

    def _context(self) -> ssl.SSLContext:
        """A TLS context that accepts the certificates that kubectl accepts. Raises OSError."""
        context = ssl.create_default_context(cadata=self.authority or None)
        # Python 3.13 and later would refuse a CA certificate without key usage or key
        # identifiers, which many clusters have. Go also trusts an intermediate CA.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if not self.is_verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            with os.fdopen(os.memfd_create("certificate"), "wb") as file:   # ssl needs a path
                file.write(self.certificate)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the object in the response. Raises as ask() does."""
        with self.ask(method, path, body) as response:
            return json.load(response)

    def follow(self, path: str, node: str, read: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
        """Yields LISTED with all objects of a node, then ADDED, MODIFIED or DELETED with one each.

        Ends when the objects must be listed again. Raises as ask() and read() do."""
        chosen = {"fieldSelector": f"spec.nodeName={node}"}
        found: list[Any] = []
        page = {"limit": str(PAGE)}
        while page:
            listed = self.send("GET", f"{path}?{urlencode(chosen | page)}")
            found += map(read, listed["items"] or ())
            more = listed["metadata"].get("continue")
            page = page | {"continue": more} if more else {}
        yield "LISTED", found
        version = listed["metadata"]["resourceVersion"]
        while True:
            wanted = chosen | {
                "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(LISTEN),
                "resourceVersion": version}
            with self.ask(
                "GET", f"{path}?{urlencode(wanted)}", patience=LISTEN + PATIENCE
            ) as response:
                for line in response:
                    event = json.loads(line)
                    if event["type"] == "ERROR":         # our resourceVersion is too old
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        yield event["type"], read(event["object"])


def watch(
    words: str, kubeconfig: Path, path: str, node: str, read: Callable[[Any], Any],
    handle: Callable[[str, Any], None],
) -> NoReturn:
    """Passes all that follow() yields for a node to `handle`, for ever. `words`: for the log."""
    problem = ""
    while True:
        try:
            for event, payload in server(kubeconfig).follow(path, node, read):
                if event == "LISTED":
                    logger.info("%s of %s are read", words, node)
                    problem = ""
                handle(event, payload)
        except FAILURES as error:
            if problem != (problem := str(error)):
                logger.warning("%s are not read: %s", words, error)
            time.sleep(PERIOD)


class Writer:
    """Writes an object to the API server when it changes, in a thread; repeats failed writes."""

    def __init__(self, words: str, write: Callable[[Any], object], pause: float = PERIOD) -> None:
        """`write` may raise as Server.ask() does: it is repeated after `pause` seconds then."""
        self._words = words
        self._write = write
        self._pause = pause
        self._wanted: Any = None
        self._pending: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=words, daemon=True).start()

    def set_wanted(self, wanted: Any) -> None:
        """Queues the object for writing, unless it equals the object queued last."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._pending.put(wanted)

    def write_again(self) -> None:
        """Queues the last object, if any, again: the API server has lost it."""
        if self._wanted is not None:
            self._pending.put(self._wanted)

    def _run(self) -> None:
        problem = ""
        while True:
            with suppress(queue.Empty):             # no new object: repeat the failed write
                wanted = self._pending.get(timeout=self._pause if problem else None)
            try:
                self._write(wanted)
                logger.info("%s: written", self._words)
                problem = ""
            except FAILURES as error:
                if problem != (problem := str(error) or repr(error)):
                    logger.warning("%s cannot be written: %s", self._words, error)


def _certificates(text: bytes) -> str:
    """The certificates in an authority's file, without other text: ssl accepts only ASCII."""
    found = CERTIFICATE.findall(text)
    if not found:
        raise ValueError("there is no certificate in the authority's file")
    return b"\n".join(found).decode()


def server(kubeconfig: Path) -> Server:
    """The server by the service account or, outside pods, the kubeconfig. Raises NvshareError."""
    try:
        if host := os.environ.get("KUBERNETES_SERVICE_HOST"):
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            name = f"[{host}]" if ":" in host else host
            return Server(
                f"https://{name}:{port}", _certificates((ACCOUNT / "ca.crt").read_bytes()),
                token=(ACCOUNT / "token").read_text().strip())
        return _of(yaml.safe_load(kubeconfig.read_text()), kubeconfig)
    except OSError as error:
        raise NvshareError(
            f"cannot read {error.filename}: {error.strerror}",
            "name kubelet's own kubeconfig with --kubeconfig") from error
    except (
        ValueError, KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError,
    ) as error:
        raise NvshareError(
            f"{kubeconfig} is no usable kubeconfig: {type(error).__name__}: {error}") from error


def _of(config: Any, kubeconfig: Path) -> Server:
    def named(kind: str, name: str) -> Any:
        return next(one[kind] for one in config[f"{kind}s"] if one["name"] == name)

    def content(of: Any, key: str) -> bytes:
        """The data of an entry, or the content of the file that the entry names; b"": neither."""
        if text := of.get(f"{key}-data"):
            return base64.b64decode(text)
        return (kubeconfig.parent / of[key]).read_bytes() if of.get(key) else b""

    context = named("context", config["current-context"])
    cluster, user = named("cluster", context["cluster"]), named("user", context["user"])
    authority = content(cluster, "certificate-authority")
    token = content(user, "tokenFile").decode().strip() or user.get("token") or ""
    # Kubelet's own kubeconfig names one file for certificate and key: its content is used once.
    certificate = b"\n".join(dict.fromkeys(
        (content(user, "client-certificate"), content(user, "client-key"))))
    if not token and not certificate:
        raise NvshareError(
            f"{kubeconfig} names neither a token nor a certificate",
            "run nvshare-kubelet as a DaemonSet, or give it another file with --kubeconfig")
    return Server(
        cluster["server"], _certificates(authority) if authority else "", certificate, token,
        cluster.get("tls-server-name") or "", not cluster.get("insecure-skip-tls-verify"))
