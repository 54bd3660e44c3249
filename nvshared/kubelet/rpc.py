# SPDX-License-Identifier: Apache-2.0
"""gRPC over Unix sockets: servers for kubelet, calls to the container runtime."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isasyncgenfunction
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError
from nvshared.kubelet.messages import REGISTRATION, classes

LONGEST_PATH = 107                      # bytes of a Unix socket's path


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service: for each method its function and the name of its request message.

    An async generator streams its responses until the peer disconnects.
    """

    name: str
    messages: Mapping[str, Any]
    methods: Mapping[str, tuple[Callable[[Any, Any], Any], str]]

    def handler(self) -> Any:
        """The service as a handler for a grpc server."""
        return grpc.method_handlers_generic_handler(self.name, {
            name: (
                grpc.unary_stream_rpc_method_handler if isasyncgenfunction(function)
                else grpc.unary_unary_rpc_method_handler
            )(
                function, request_deserializer=self.messages[request].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (function, request) in self.methods.items()
        })


async def serve(path: Path, *services: Service) -> Any:
    """Starts a server at a new socket that only root may use. Raises NvshareError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InvalidArgs(f"{path} is too long for a socket: {LONGEST_PATH} bytes at most")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(service.handler() for service in services))
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise NotPermitted(f"cannot listen at {path}: {error}", "run it as root") from error
    finally:
        os.umask(before)
    await server.start()
    return server


async def refuse(context: Any, why: str) -> None:
    """Ends a call with an error. Always raises."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


async def ask(path: Path, method: str, request: Any, answer: Any, patience: float) -> Any:
    """Calls a method of another server. Raises NvshareError."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            return await channel.unary_unary(
                f"/{method}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request, timeout=patience)
        except grpc.aio.AioRpcError as error:
            raise NvshareError(f"{path} does not answer: {error.details()}") from error


logger = logging.getLogger(__name__)

REGISTRY = "plugins_registry"

REG = classes("pluginregistration", REGISTRATION)


@dataclass(frozen=True, slots=True)
class Kind:
    """How a plugin registers with kubelet."""

    type: str
    name: str
    versions: tuple[str, ...]
    socket: str                         # its name in kubelet's folder


class Servant(Protocol):
    """A plugin of kubelet: the device plugin or the DRA driver."""

    kind: Kind

    def services(self) -> Sequence[Service]:
        """The gRPC services that kubelet calls."""


class Registered:
    """Registers a plugin with kubelet, and serves it."""

    def __init__(self, plugin: Servant, kubelet: Path) -> None:
        self._plugin = plugin
        self._kind = plugin.kind
        self.path = kubelet / REGISTRY / self._kind.socket
        self._server: Any = None

    async def start(self) -> None:
        """Serves at a new socket, which kubelet's plugin watcher finds. Raises NvshareError."""
        await self.stop()
        if not self.path.parent.parent.is_dir():
            raise NvshareError(
                f"there is no folder {self.path.parent.parent}: kubelet is not on this machine",
                "--kubelet names another folder; kubelet's --root-dir says which",
            )
        try:
            self.path.parent.mkdir(mode=0o750, exist_ok=True)
            self.path.unlink(missing_ok=True)   # left by a killed nvshare-kubelet
        except OSError as error:
            raise NotPermitted(
                f"cannot make a socket in {self.path.parent}: {error.strerror}", "run it as root"
            ) from error
        self._server = await serve(
            self.path,
            Service("pluginregistration.Registration", REG, {
                "GetInfo": (self._info, "InfoRequest"),
                "NotifyRegistrationStatus": (self._registered, "RegistrationStatus"),
            }),
            *self._plugin.services(),
        )

    async def stop(self) -> None:
        """Removes the socket, which unregisters the plugin."""
        if self._server is not None:
            self.path.unlink(missing_ok=True)
            await self._server.stop(None)
            self._server = None

    def is_there(self) -> bool:
        """Whether the socket exists: `kubeadm reset`, for example, empties kubelet's folder."""
        return self.path.is_socket()

    async def _info(self, _request: Any, _context: Any) -> Any:
        return REG["PluginInfo"](
            type=self._kind.type, name=self._kind.name, endpoint=str(self.path),
            supported_versions=self._kind.versions,
        )

    async def _registered(self, status: Any, _context: Any) -> Any:
        if status.plugin_registered:
            logger.info("kubelet knows %s now", self._kind.name)
        else:
            logger.error("kubelet does not take %s: %s", self._kind.name, status.error)
        return REG["RegistrationStatusResponse"]()
