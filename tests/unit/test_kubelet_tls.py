# SPDX-License-Identifier: Apache-2.0
"""nvshare-kubelet trusts exactly the API servers that kubelet and kubectl trust."""

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nvshared.kubelet.api import APIServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")

IDENTIFIED = "subjectKeyIdentifier=hash\n"
SIGNED = "authorityKeyIdentifier=keyid\n"
# X.509 extensions of the authority's certificate and of the server's certificate.
AUTHORITIES: Mapping[str, tuple[str, str]] = {
    "kubeadm": (
        "basicConstraints=critical,CA:TRUE\n"
        f"keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign\n{IDENTIFIED}", SIGNED),
    "without key identifiers": (
        "basicConstraints=critical,CA:TRUE\n",
        "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"),
    "without key usage": (f"basicConstraints=critical,CA:TRUE\n{IDENTIFIED}{SIGNED}", SIGNED),
    "with constraints that are not critical": (
        f"basicConstraints=CA:TRUE\n{IDENTIFIED}{SIGNED}", SIGNED),
}


class Handler(BaseHTTPRequestHandler):
    """Answers each GET with an empty JSON object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def openssl(*command: str) -> None:
    subprocess.run(["openssl", *command], check=True, capture_output=True)


def make(folder: Path, kind: str, names: str = "IP:127.0.0.1") -> None:
    """An authority and the certificate of a server."""
    authority, server = AUTHORITIES[kind]
    (folder / "request").write_text(
        f"[req]\ndistinguished_name=d\nx509_extensions=v\n[d]\n[v]\n{authority}")
    (folder / "extensions").write_text(f"subjectAltName={names}\n{server}")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt",
            "-subj", "/CN=kubernetes", "-days", "9", "-config", f"{folder}/request")
    openssl("req", *key, "-keyout", f"{folder}/s.key", "-out", f"{folder}/s.csr", "-subj", "/CN=a")
    openssl("x509", "-req", "-in", f"{folder}/s.csr", "-CA", f"{folder}/ca.crt", "-CAkey",
            f"{folder}/ca.key", "-CAcreateserial", "-days", "9", "-out", f"{folder}/s.crt",
            "-extfile", f"{folder}/extensions")


@contextmanager
def serving(folder: Path, client_authority: str = "") -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "s.crt", folder / "s.key")
    if client_authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies certificates strictly, as Python does by default from 3.13 on."""
    make_default = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        context = make_default(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


@pytest.mark.parametrize("kind", AUTHORITIES)
def test_server_certificate_is_verified_by_the_authorities_that_kubectl_accepts(
        tmp_path: Path, kind: str) -> None:
    make(tmp_path, kind)
    with serving(tmp_path) as url:
        assert APIServer(url, (tmp_path / "ca.crt").read_text()).send("GET", "/") == {}
        with pytest.raises(ssl.SSLCertVerificationError):
            APIServer(url).send("GET", "/")


def test_certificate_for_another_name_is_refused_without_tls_server_name(tmp_path: Path) -> None:
    make(tmp_path, "kubeadm", "DNS:kubernetes.default")
    with serving(tmp_path) as url:
        authority = (tmp_path / "ca.crt").read_text()
        with pytest.raises(ssl.SSLCertVerificationError):
            APIServer(url, authority).send("GET", "/")
        assert APIServer(url, authority, name="kubernetes.default").send("GET", "/") == {}
        with pytest.raises(ssl.SSLCertVerificationError):
            APIServer(url, authority, name="another").send("GET", "/")
        assert APIServer(url, is_verified=False).send("GET", "/") == {}
    with serving(tmp_path, str(tmp_path / "ca.crt")) as url:        # demands a client certificate
        pair = b"\n".join((tmp_path / name).read_bytes() for name in ("s.crt", "s.key"))
        made = APIServer(url, authority, pair, name="kubernetes.default")
        assert made.send("GET", "/") == {}
