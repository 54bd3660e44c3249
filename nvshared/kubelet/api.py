# SPDX-License-Identifier: Apache-2.0
"""A client of Kubernetes' API server: credentials, requests, and watches.

In a pod of a DaemonSet the client uses the service account, whose token is renewed from time to
time. On a host it uses kubelet's own kubeconfig: a node may read its pods and write their events
and status. Either is read again for each connection.

One request lists the objects of a node, the next watches their changes. Pods are fetched in full:
the container ids, at the end of each, are needed.
"""

import base64
import http.client
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit

import yaml

from nvshared.errors import NvshareError

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE = 5                                # objects per response: parsing a pod takes 100 KB
LISTEN = 60                             # seconds that a watch request lasts
WRITTEN = {"PATCH": "application/strategic-merge-patch+json"}
PATIENCE = 10.0                         # seconds for a response, and after LISTEN for a watch
NODES = "/api/v1/nodes"
PERIOD = 2.0                            # seconds between attempts to reach the API server
# Another server may answer at the address, so the response may be anything.
TROUBLES = (
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
        """Connects as the base class does, but with `name`. Raises OSError."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name or self.host)


@dataclass(frozen=True, slots=True)
class Server:
    """The address of an API server, and our credentials."""

    url: str
    authority: str = ""                 # file of the CA certificates,
    authority_data: str = ""            # or their text
    certificate: tuple[str | bytes, ...] = ()   # client certificate, key: files or contents
    token: str = ""
    name: str = ""                      # expected in its certificate; "": the address
    is_verified: bool = True

    def ask(
        self, method: str, path: str, body: Any = None, patience: float = PATIENCE
    ) -> http.client.HTTPResponse:
        """Sends a request, returns the response. Raises NvshareError for an HTTP error; OSError."""
        place = urlsplit(self.url)
        if place.scheme == "http":
            made = http.client.HTTPConnection(place.netloc, timeout=patience)
        else:
            made = Connection(place.netloc, self.name, patience, self._context())
        headers = {
            "Accept": "application/json", "Content-Type": WRITTEN.get(method, "application/json"),
            "Connection": "close",
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        made.request(method, place.path.rstrip("/") + path, body and json.dumps(body), headers)
        answer = made.getresponse()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            with closing(made):
                said = answer.read().decode(errors="replace")
            try:
                said = json.loads(said)["message"]
            except (ValueError, KeyError, TypeError):
                said = said.strip()[:200] or answer.reason
            raise NvshareError(f"{place.netloc} answers {answer.status}: {said}")
        return answer

    def _context(self) -> ssl.SSLContext:
        """A TLS context that verifies what kubelet and kubectl verify. Raises OSError."""
        context = ssl.create_default_context(
            cafile=self.authority or None, cadata=self.authority_data or None)
        # Python 3.13 and later would refuse a CA certificate without key usage or key
        # identifiers, which many clusters have. Go also trusts an intermediate CA.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if not self.is_verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            with ExitStack() as files:
                context.load_cert_chain(*(files.enter_context(_file(one))
                                          for one in self.certificate))
        return context

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the object in the response. Raises as ask() does."""
        with self.ask(method, path, body) as answer:
            return json.load(answer)

    def follow(
        self, path: str, selector: str, read: Callable[[Any], Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yields LISTED with all objects, then ADDED, MODIFIED or DELETED with one each.

        Ends when the objects must be listed again. Raises as ask() and read() do.
        """
        chosen = {"fieldSelector": selector}
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
                "resourceVersion": version,
            }
            with self.ask(
                "GET", f"{path}?{urlencode(wanted)}", patience=LISTEN + PATIENCE
            ) as answer:
                for line in answer:
                    news = json.loads(line)
                    if news["type"] == "ERROR":         # our resourceVersion is too old
                        return
                    version = news["object"]["metadata"]["resourceVersion"]
                    if news["type"] != "BOOKMARK":
                        yield news["type"], read(news["object"])


def listen(
    words: str, kubeconfig: Path, path: str, node: str, read: Callable[[Any], Any],
    hear: Callable[[str, Any], None],
) -> NoReturn:
    """Passes everything that follow() yields for a node to `hear`, for ever; runs in a thread.

    `words`: the kind of objects, for the log. After an error the server is tried again; each
    error is logged once.
    """
    trouble = ""
    while True:
        try:
            for news, what in server(kubeconfig).follow(path, f"spec.nodeName={node}", read):
                if news == "LISTED":
                    logger.info("%s of %s are read", words, node)
                    trouble = ""
                hear(news, what)
        except TROUBLES as error:
            if trouble != (trouble := str(error)):
                logger.warning("%s are not read: %s", words, error)
            time.sleep(PERIOD)


def server(kubeconfig: Path) -> Server:
    """The API server, by service account or kubeconfig. Raises NvshareError without either."""
    try:
        if host := os.environ.get("KUBERNETES_SERVICE_HOST"):
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            name = f"[{host}]" if ":" in host else host
            return Server(
                f"https://{name}:{port}", str(ACCOUNT / "ca.crt"),
                token=(ACCOUNT / "token").read_text().strip(),
            )
        return _of(yaml.safe_load(kubeconfig.read_text()), kubeconfig)
    except OSError as error:
        raise NvshareError(
            f"cannot read {error.filename}: {error.strerror}",
            "--kubeconfig names kubelet's file, whose --kubeconfig says which it is",
        ) from error
    except (
        ValueError, KeyError, TypeError, AttributeError, StopIteration, yaml.YAMLError,
    ) as error:
        raise NvshareError(
            f"{kubeconfig} is no kubeconfig that we can use: {type(error).__name__}: {error}"
        ) from error


def _of(config: Any, kubeconfig: Path) -> Server:
    context = _named(config, "context", config["current-context"])
    cluster = _named(config, "cluster", context["cluster"])
    user = _named(config, "user", context["user"])

    def path(text: str) -> str:
        return str(kubeconfig.parent / text)

    authority = cluster.get("certificate-authority") or ""
    data = ""
    if text := cluster.get("certificate-authority-data"):
        # Only the certificates: text around them may not be ASCII, which ssl requires.
        found = CERTIFICATE.findall(base64.b64decode(text))
        if not found:
            raise ValueError("there is no certificate in certificate-authority-data")
        authority, data = "", b"\n".join(found).decode()
    token = user.get("token") or ""
    if user.get("tokenFile"):
        token = Path(path(user["tokenFile"])).read_text().strip()
    certificate: list[str | bytes] = []
    for key in ("client-certificate", "client-key"):
        if user.get(f"{key}-data"):
            certificate.append(base64.b64decode(user[f"{key}-data"]))
        elif user.get(key):
            certificate.append(path(user[key]))
    if not token and not certificate:
        raise NvshareError(
            f"{kubeconfig} names neither a token nor a certificate",
            "run nvshare-kubelet as a DaemonSet, or give it another file with --kubeconfig",
        )
    return Server(
        cluster["server"], authority and path(authority), data, tuple(certificate), token,
        cluster.get("tls-server-name") or "", not cluster.get("insecure-skip-tls-verify"),
    )


@contextmanager
def _file(certificate: str | bytes) -> Iterator[str]:
    """The path of a certificate; contents are put into a memory file, as ssl needs a path."""
    if isinstance(certificate, str):
        yield certificate
        return
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(certificate)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _named(config: Any, kind: str, name: str) -> Any:
    return next(one[kind] for one in config[f"{kind}s"] if one["name"] == name)
