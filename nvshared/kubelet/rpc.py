# SPDX-License-Identifier: Apache-2.0
"""gRPC over Unix sockets: servers for kubelet, calls of the container runtime, and their messages.

Messages have only the fields that nvshare-kubelet sets or reads, in the syntax of .proto files: the
interfaces are frozen. Generated code would need one version of protobuf."""

import os
import re
from collections.abc import Callable, Mapping
from inspect import isasyncgenfunction
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nvshared.errors import InvalidArgs, NotPermitted, NvshareError

LONGEST_PATH = 107                      # bytes of a Unix socket's path
# By method: its function, and the class of its request. An async generator streams responses.
Methods = Mapping[str, tuple[Callable[[Any, Any], Any], Any]]


async def serve(path: Path, services: Mapping[str, Methods]) -> Any:
    """Starts a server at a new socket that only root may use. Raises NvshareError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InvalidArgs(f"{path} is too long for a socket: {LONGEST_PATH} bytes at most")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(
        grpc.method_handlers_generic_handler(service, {
            name: (
                grpc.unary_stream_rpc_method_handler if isasyncgenfunction(function)
                else grpc.unary_unary_rpc_method_handler
            )(
                function, request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString())
            for name, (function, request) in methods.items()})
        for service, methods in services.items()))
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise NotPermitted(f"cannot listen at {path}: {error}", "run it as root") from error
    finally:
        os.umask(before)
    await server.start()
    return server


async def abort(context: Any, why: str) -> None:
    """Ends a call with an error. Always raises."""
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


async def call(path: Path, method: str, request: Any, answer: Any, patience: float) -> Any:
    """Calls a method of another server; `patience` in seconds. Raises NvshareError."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            return await channel.unary_unary(
                f"/{method}", request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )(request, timeout=patience)
        except grpc.aio.AioRpcError as error:
            raise NvshareError(f"{path} does not answer: {error.details()}") from error


REGISTRATION = """
PluginInfo {
    string type = 1; string name = 2; string endpoint = 3; repeated string supported_versions = 4;
}
RegistrationStatus { bool plugin_registered = 1; string error = 2; }
RegistrationStatusResponse {}
InfoRequest {}
"""

DEVICE_PLUGIN = """
Empty {}
DevicePluginOptions { bool get_preferred_allocation_available = 2; }
NUMANode { int64 ID = 1; }
TopologyInfo { repeated NUMANode nodes = 1; }
Device { string ID = 1; string health = 2; TopologyInfo topology = 3; }
ListAndWatchResponse { repeated Device devices = 1; }
ContainerPreferredAllocationRequest {
    repeated string available_deviceIDs = 1; repeated string must_include_deviceIDs = 2;
    int32 allocation_size = 3;
}
PreferredAllocationRequest { repeated ContainerPreferredAllocationRequest container_requests = 1; }
ContainerPreferredAllocationResponse { repeated string deviceIDs = 1; }
PreferredAllocationResponse {
    repeated ContainerPreferredAllocationResponse container_responses = 1;
}
ContainerAllocateRequest { repeated string devices_ids = 1; }
AllocateRequest { repeated ContainerAllocateRequest container_requests = 1; }
Mount { string container_path = 1; string host_path = 2; bool read_only = 3; }
DeviceSpec { string container_path = 1; string host_path = 2; string permissions = 3; }
CDIDevice { string name = 1; }
ContainerAllocateResponse {
    map<string, string> envs = 1; repeated Mount mounts = 2; repeated DeviceSpec devices = 3;
    repeated CDIDevice cdi_devices = 5;
}
AllocateResponse { repeated ContainerAllocateResponse container_responses = 1; }
"""

DYNAMIC_ALLOCATION = """
Claim { string namespace = 1; string uid = 2; string name = 3; }
Device {
    repeated string request_names = 1; string pool_name = 2; string device_name = 3;
    repeated string cdi_device_ids = 4; string share_id = 5;
}
NodePrepareResourcesRequest { repeated Claim claims = 1; }
NodePrepareResourceResponse { repeated Device devices = 1; string error = 2; }
NodePrepareResourcesResponse { map<string, NodePrepareResourceResponse> claims = 1; }
NodeUnprepareResourcesRequest { repeated Claim claims = 1; }
NodeUnprepareResourceResponse { string error = 1; }
NodeUnprepareResourcesResponse { map<string, NodeUnprepareResourceResponse> claims = 1; }

NodeWatchResourcesRequest {}
DeviceIdentifier { string pool_name = 1; string device_name = 2; }
DeviceHealth {
    DeviceIdentifier device = 1; int32 health = 2; int64 last_updated_time = 3; string message = 5;
}
NodeWatchResourcesResponse { repeated DeviceHealth devices = 1; }
"""

RUNTIME = """
VersionRequest { string version = 1; }
VersionResponse { string runtime_name = 2; string runtime_version = 3; }
StatusRequest { bool verbose = 1; }
StatusResponse { map<string, string> info = 2; }
"""

MESSAGE = re.compile(r"(\w+) \{(.*?)\}", re.DOTALL)
FIELD = re.compile(r"(repeated |map<string, )?(\w+)>? (\w+) = (\d+);")


def _classes(device_entry: str) -> dict[str, Any]:
    """The message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="it.proto", package="it", syntax="proto3")

    def add(message: Any, form: str, kind: str, name: str, number: str) -> None:
        field = message.field.add(name=name, number=int(number))
        if form.startswith("map"):      # on the wire a list of messages with key and value
            entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
            entry.options.map_entry = True
            add(entry, "", "string", "key", "1")
            add(entry, "", kind, "value", "2")
            kind = f"{message.name}.{entry.name}"
        field.label = field.LABEL_REPEATED if form else field.LABEL_OPTIONAL
        if plain := getattr(field, f"TYPE_{kind.upper()}", None):
            field.type = plain
        else:
            field.type, field.type_name = field.TYPE_MESSAGE, f".it.{kind}"

    for name, fields in MESSAGE.findall(device_entry):
        message = file.message_type.add(name=name)
        for field in FIELD.findall(fields):
            add(message, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    # Protobuf 3.21 (Debian 12) lacks GetMessageClass; later versions lack MessageFactory.
    make = getattr(message_factory, "GetMessageClass", None) or (
        message_factory.MessageFactory(pool).GetPrototype)
    return {one.name: make(pool.FindMessageTypeByName(f"it.{one.name}"))
            for one in file.message_type}


REG, DP, DRA, CRI = map(_classes, (REGISTRATION, DEVICE_PLUGIN, DYNAMIC_ALLOCATION, RUNTIME))
