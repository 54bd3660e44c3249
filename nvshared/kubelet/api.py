# SPDX-License-Identifier: Apache-2.0
"""A client of Kubernetes' API server, by the service account or outside pods kubelet's kubeconfig.

It asks as client-go does: large pages, pauses that grow and are spread at random, Retry-After, a
User-Agent. The credentials are read again for each request, since tokens are renewed. Pods are
fetched in full, because their status has the container ids."""

import base64
import codecs
import http.client
import json
import logging
import os
import platform
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NoReturn
from urllib.parse import urlencode, urlsplit

import yaml

from nvshared import __version__
from nvshared.errors import NvshareError

logger = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Objects per response. Only the first page of a node's pods uses the API server's index by node.
PAGE = 500
CHUNK = 1 << 16                         # bytes of a list that are read at once
MOST_OBJECT = 1 << 23                   # characters of an object; etcd stores at most 1.5 MiB
SPREAD = Random()                       # of this module's threads: no other module seeds it
LISTEN = 300                            # least seconds that a watch request lasts; at most twice
WRITTEN = {"PATCH": "application/strategic-merge-patch+json"}
PATIENCE = 10.0                         # most seconds until a connection, and until a response
NODES = "/api/v1/nodes"
# The pauses between attempts, as client-go's reflectors make them, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.8, 30.0
CALM = 120.0                            # seconds without an error; then pauses are short again
LONGEST_RETRY_AFTER = 300.0             # seconds that the API server may ask for
# A connection whose other end is gone is noticed while a watch waits: seconds, seconds, number.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
AGENT = f"nvshare-kubelet/{__version__} (linux/{platform.machine()})"
# Raised by a request: any server may answer at the address, with content of any form.
FAILURES = (
    NvshareError, OSError, http.client.HTTPException, ValueError, KeyError, TypeError,
    AttributeError,
)
SPACE = re.compile(r"[ \t\r\n]*")
CERTIFICATE = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----[^-]*-----END [A-Z0-9 ]+-----")


class RequestRefused(NvshareError):
    """The API server answered with an error."""

    def __init__(self, message: str, status: int, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds until the next attempt that the API server asks for; 0: none."""
        super().__init__(message)
        self.status = status
        self.retry_after = min(retry_after, LONGEST_RETRY_AFTER)


def is_passing(error: BaseException) -> bool:
    """Whether the same request may succeed later: the API server does not answer, or is busy, or
    the token has expired, which kubelet renews."""
    return not isinstance(error, RequestRefused) or (
        error.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.TOO_MANY_REQUESTS)
        or error.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR)


class RetryPause:
    """Pauses between attempts that double, and are spread at random: nodes do not ask in step."""

    def __init__(self) -> None:
        self._base = FIRST_PAUSE
        self._ended = 0.0               # when the last pause ended

    def seconds(self, error: BaseException | None = None) -> float:
        """The length of the pause that begins now. `error`: of the last attempt."""
        now = time.monotonic()
        if now - self._ended > CALM:
            self._base = FIRST_PAUSE
        length = max(
            self._base, error.retry_after if isinstance(error, RequestRefused) else 0.0
        ) * SPREAD.uniform(1, 2)
        self._base = min(2 * self._base, LONGEST_PAUSE)
        self._ended = now + length
        return length


class Connection(http.client.HTTPSConnection):
    """An HTTPS connection that verifies the certificate for `name`, not for the address."""

    def __init__(self, netloc: str, name: str, patience: float, context: ssl.SSLContext) -> None:
        super().__init__(netloc, timeout=patience, context=context)
        self._tls, self._name = context, name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name or self.host)


@dataclass(frozen=True, slots=True)
class APIServer:
    url: str
    authority: str = ""                 # CA certificates (PEM); "": the system's certificates
    certificate: bytes = b""            # certificate of nvshare-kubelet and its private key (PEM)
    token: str = ""
    name: str = ""                      # name in the server's certificate; "": the host in `url`
    is_verified: bool = True

    def ask(
        self, method: str, path: str, body: Any = None, patience: float = PATIENCE
    ) -> http.client.HTTPResponse:
        """Sends a request, returns the response. Raises Refused for an HTTP error; OSError.

        `patience`: most seconds between two parts of the response."""
        url = urlsplit(self.url)
        if url.scheme == "http":
            made = http.client.HTTPConnection(url.netloc, timeout=PATIENCE)
        else:
            made = Connection(url.netloc, self.name, PATIENCE, self._context())
        headers = {
            "Accept": "application/json", "Content-Type": WRITTEN.get(method, "application/json"),
            "Connection": "close", "User-Agent": AGENT}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        made.connect()
        made.sock.settimeout(patience)
        made.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            made.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        made.request(method, url.path.rstrip("/") + path, body and json.dumps(body), headers)
        response = made.getresponse()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            with response:
                raise _refused(url.netloc, response)
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

    def objects(
        self, path: str, node: str, read: Callable[[Any], Any], *, cached: bool = False
    ) -> tuple[list[Any], str]:
        """All objects of a node, and their resourceVersion. `cached`: the API server's cache will
        do. Leaves out objects for which read() raises. Raises as ask() does."""
        found: list[Any] = []
        page = {"limit": str(PAGE)} | ({"resourceVersion": "0"} if cached else {})
        while True:
            with self.ask("GET", f"{path}?{urlencode(_chosen(node) | page)}") as response:
                meta: Any = {}
                for key, value in _members(response):
                    if key == "metadata":
                        meta = value
                    elif key == "items":
                        found += _taken(path, read, value)
            if not (more := meta.get("continue")):
                return found, meta["resourceVersion"]
            page = {"limit": str(PAGE), "continue": more}

    def events(
        self, path: str, node: str, read: Callable[[Any], Any], version: str
    ) -> Iterator[tuple[str, list[Any], str]]:
        """Yields the events of a node's objects since a resourceVersion: ADDED, MODIFIED,
        DELETED or BOOKMARK, with the object if read() makes one of it, and its resourceVersion.

        Ends after LISTEN seconds or more. Raises as ask() does: GONE if the objects have to be
        listed again."""
        seconds = SPREAD.randint(LISTEN, 2 * LISTEN)
        wanted = _chosen(node) | {
            "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds),
            "resourceVersion": version}
        asked = f"{path}?{urlencode(wanted)}"
        with self.ask("GET", asked, patience=seconds + PATIENCE) as response:
            for line in response:
                event = json.loads(line)
                found = event["object"]
                if event["type"] == "ERROR":        # mostly: our resourceVersion is too old
                    after = (found.get("details") or {}).get("retryAfterSeconds") or 0
                    raise RequestRefused(
                        f"the watch ended: {found.get('message') or found.get('code')}",
                        http.HTTPStatus.GONE, float(after))
                objects = [] if event["type"] == "BOOKMARK" else _taken(path, read, found)
                yield event["type"], objects, found["metadata"]["resourceVersion"]


def _chosen(node: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={node}"}


def _taken(path: str, read: Callable[[Any], Any], one: Any) -> list[Any]:
    """The object as read() makes it, in a list that is empty if the object is malformed."""
    try:
        return [read(one)]
    except (NvshareError, ValueError, KeyError, TypeError, AttributeError) as error:
        meta = one.get("metadata") if isinstance(one, dict) else None
        logger.warning("an object of %s is left out, %.300r: %r", path, meta, error)
        return []


def _members(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """The members of a JSON object, and each element of "items" by itself: pods of a node may have
    hundreds of megabytes. Raises ValueError."""
    text, position = "", 0
    decode, parse = codecs.getincrementaldecoder("utf-8")().decode, json.JSONDecoder().raw_decode

    def read_more() -> None:
        nonlocal text, position
        text, position = text[position:], 0
        if len(text) > MOST_OBJECT or not (piece := file.read(max(CHUNK, len(text)))):
            raise ValueError("a list is no JSON, or has too large an object")
        text += decode(piece)

    def next_character() -> str:
        nonlocal position
        while True:
            rest = SPACE.match(text, position)
            position = rest.end() if rest else position
            if position < len(text):
                return text[position]
            read_more()

    def take(characters: str) -> str:
        nonlocal position
        if (found := next_character()) not in characters:
            raise ValueError(f"a list has {found!r} in the place of one of {characters!r}")
        position += 1
        return found

    def value() -> Any:
        nonlocal position
        next_character()
        while True:
            with suppress(json.JSONDecodeError):
                parsed, end = parse(text, position)
                if end < len(text):     # a number may go on
                    position = end
                    return parsed
            read_more()

    take("{")
    while True:
        key = value()
        take(":")
        if key == "items" and next_character() == "[":
            take("[")
            if next_character() == "]":
                take("]")
            else:
                yield key, value()
                while take(",]") == ",":
                    yield key, value()
        elif key != "items":
            yield key, value()
        else:
            value()                     # Kubernetes sends null in place of an empty list
        if take(",}") == "}":
            return


def _refused(address: str, response: http.client.HTTPResponse) -> RequestRefused:
    text = response.read(CHUNK).decode(errors="replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text.strip()[:200] or response.reason
    after = response.headers.get("Retry-After", "")
    return RequestRefused(
        f"{address} answers {response.status}: {message}", response.status,
        float(after) if re.fullmatch(r"\d{1,6}", after, re.ASCII) else 0.0)


def watch(
    words: str, kubeconfig: Path, path: str, node: str, cached: bool,
    read: Callable[[Any], Any], handle: Callable[[str, Any], None],
) -> NoReturn:
    """Passes LISTED with all objects of a node to `handle`, then each of events(), for ever.

    `words`: for the log. `cached`: the first list may be older than what another API server has
    shown. Leaves out objects for which read() raises."""
    version, problem, pause = "", "", RetryPause()      # no version: list first
    while True:
        began = time.monotonic()
        error: BaseException | None = None
        try:
            api = server(kubeconfig)
            if not version:
                found, version = api.objects(path, node, read, cached=cached)
                cached, problem = False, ""
                logger.info("%s of %s are read", words, node)
                handle("LISTED", found)
            for event, objects, seen in api.events(path, node, read, version):
                version, problem = seen, ""
                for one in objects:
                    handle(event, one)
        except FAILURES as failed:
            error = failed
            if getattr(error, "status", 0) == http.HTTPStatus.GONE:
                version = ""
                logger.info("%s are listed again: %s", words, error)
            elif problem != (problem := str(error) or repr(error)):
                logger.warning("%s are not read: %s", words, error)
        if error is not None or time.monotonic() - began < FIRST_PAUSE:
            time.sleep(pause.seconds(error))


def _certificates(text: bytes) -> str:
    """The certificates in an authority's file, without other text: ssl accepts only ASCII."""
    found = CERTIFICATE.findall(text)
    if not found:
        raise ValueError("there is no certificate in the authority's file")
    return b"\n".join(found).decode()


def server(kubeconfig: Path) -> APIServer:
    """The server by the service account or, outside pods, the kubeconfig. Raises NvshareError."""
    try:
        if host := os.environ.get("KUBERNETES_SERVICE_HOST"):
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            name = f"[{host}]" if ":" in host else host
            return APIServer(
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


def _of(config: Any, kubeconfig: Path) -> APIServer:
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
    return APIServer(
        cluster["server"], _certificates(authority) if authority else "", certificate, token,
        cluster.get("tls-server-name") or "", not cluster.get("insecure-skip-tls-verify"))
