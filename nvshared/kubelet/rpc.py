# SPDX-License-Identifier: Apache-2.0
"""gRPC over Unix sockets: servers for kubelet, calls to the container runtime."""

import os
from collections.abc import Callable, Mapping
from inspect import isasyncgenfunction
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

LONGEST_PATH = 107                      # bytes of a Unix socket's path
# For each method of a gRPC service its function and the class of its request. An async generator
# streams its responses until the peer disconnects.
Methods = Mapping[str, tuple[Callable[[Any, Any], Any], Any]]


def _handler(service: str, methods: Methods) -> Any:
    return grpc.method_handlers_generic_handler(service, {
        name: (
            grpc.unary_stream_rpc_method_handler if isasyncgenfunction(function)
            else grpc.unary_unary_rpc_method_handler
        )(
            function, request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for name, (function, request) in methods.items()
    })


async def serve(path: Path, services: Mapping[str, Methods]) -> Any:
    """Starts a server at a new socket that only root may use. Raises NvshareError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InvalidArgs(f"{path} is too long for a socket: {LONGEST_PATH} bytes at most")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(_handler(*one) for one in services.items()))
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
    """Calls a method of another server; `patience` in seconds. Raises NvshareError."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            return await channel.unary_unary(
                f"/{method}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request, timeout=patience)
        except grpc.aio.AioRpcError as error:
            raise NvshareError(f"{path} does not answer: {error.details()}") from error
