# SPDX-License-Identifier: Apache-2.0
"""gRPC over local sockets: what we serve to kubelet, and what we ask the container runtime."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

LONGEST_PATH = 107                      # bytes of a socket's name


@dataclass(frozen=True, slots=True)
class Service:
    """What we answer: by the name of each method, with which function and to which message.

    A function that yields has its answers streamed, until whoever asks hangs up.
    """

    name: str
    messages: Mapping[str, Any]
    methods: Mapping[str, tuple[Callable[[Any, Any], Any], str]]
    streamed: tuple[str, ...] = ()

    def handler(self) -> Any:
        """As gRPC wants it."""
        return grpc.method_handlers_generic_handler(self.name, {
            name: (
                grpc.unary_stream_rpc_method_handler if name in self.streamed
                else grpc.unary_unary_rpc_method_handler
            )(
                function, request_deserializer=self.messages[request].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (function, request) in self.methods.items()
        })


async def serve(path: Path, *services: Service) -> Any:
    """A server at a new socket, for root alone. Raises NvshareError."""
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
    """Ends a call. Raises, so that nothing comes after it."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


async def ask(path: Path, method: str, request: Any, answer: Any, patience: float) -> Any:
    """Somebody else's answer. Raises NvshareError."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            return await channel.unary_unary(
                f"/{method}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request, timeout=patience)
        except grpc.aio.AioRpcError as error:
            raise NvshareError(f"{path} does not answer: {error.details()}") from error
