# SPDX-License-Identifier: Apache-2.0
"""A container runtime's version and status: real gRPC over a real socket."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nvshared.kubelet.rpc import CRI


class Runtime:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "cri"
        self.name, self.version = "containerd", "1.7.24"
        self.config: dict[str, Any] = {"enableCDI": True}
        self._server = grpc.server(ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "runtime.v1.RuntimeService", {
                "Version": self._handler(self._version, "VersionRequest"),
                "Status": self._handler(self._status, "StatusRequest"),
            }),))
        self._server.add_insecure_port(f"unix:{self.path}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _version(self, _request: Any, _context: Any) -> Any:
        return CRI["VersionResponse"](runtime_name=self.name, runtime_version=self.version)

    def _status(self, request: Any, _context: Any) -> Any:
        assert request.verbose
        return CRI["StatusResponse"](info={"config": json.dumps(self.config)})

    @staticmethod
    def _handler(function: Any, request: str) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            function, request_deserializer=CRI[request].FromString,
            response_serializer=lambda message: message.SerializeToString())
