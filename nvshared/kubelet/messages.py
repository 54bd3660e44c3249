# SPDX-License-Identifier: Apache-2.0
"""The messages that kubelet and its plugins exchange, described here and made at run time.

Interfaces of Kubernetes: pluginregistration/v1, by which kubelet finds plugins,
deviceplugin/v1beta1, dra/v1 with dra-health/v1alpha1, and two calls of CRI's runtime/v1. Messages
have only the fields that nvshare-kubelet sets or reads. All these interfaces are frozen. Protobuf
makes classes of the descriptions at run time: generated code would need one version of protobuf.

A field is written as NUMBER TYPE. A type after `*` is repeated, `map` is a map from strings to
strings, and `map TYPE` is a map from strings to messages.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = dict[str, str]
Described = dict[str, Fields]

REGISTRATION: Described = {
    "PluginInfo": {
        "type": "1 string", "name": "2 string", "endpoint": "3 string",
        "supported_versions": "4 *string",
    },
    "RegistrationStatus": {"plugin_registered": "1 bool", "error": "2 string"},
    "RegistrationStatusResponse": {},
    "InfoRequest": {},
}

DEVICE_PLUGIN: Described = {
    "Empty": {},
    "DevicePluginOptions": {"get_preferred_allocation_available": "2 bool"},
    "Device": {"ID": "1 string", "health": "2 string"},
    "ListAndWatchResponse": {"devices": "1 *Device"},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": "1 *string", "must_include_deviceIDs": "2 *string",
        "allocation_size": "3 int32",
    },
    "PreferredAllocationRequest": {
        "container_requests": "1 *ContainerPreferredAllocationRequest",
    },
    "ContainerPreferredAllocationResponse": {"deviceIDs": "1 *string"},
    "PreferredAllocationResponse": {
        "container_responses": "1 *ContainerPreferredAllocationResponse",
    },
    "ContainerAllocateRequest": {"devices_ids": "1 *string"},
    "AllocateRequest": {"container_requests": "1 *ContainerAllocateRequest"},
    "Mount": {"container_path": "1 string", "host_path": "2 string", "read_only": "3 bool"},
    "DeviceSpec": {
        "container_path": "1 string", "host_path": "2 string", "permissions": "3 string",
    },
    "CDIDevice": {"name": "1 string"},
    "ContainerAllocateResponse": {
        "envs": "1 map", "mounts": "2 *Mount", "devices": "3 *DeviceSpec",
        "cdi_devices": "5 *CDIDevice",
    },
    "AllocateResponse": {"container_responses": "1 *ContainerAllocateResponse"},
}

DRA: Described = {
    "Claim": {"namespace": "1 string", "uid": "2 string", "name": "3 string"},
    "Device": {
        "request_names": "1 *string", "pool_name": "2 string", "device_name": "3 string",
        "cdi_device_ids": "4 *string", "share_id": "5 string",
    },
    "NodePrepareResourcesRequest": {"claims": "1 *Claim"},
    "NodePrepareResourceResponse": {"devices": "1 *Device", "error": "2 string"},
    "NodePrepareResourcesResponse": {"claims": "1 map NodePrepareResourceResponse"},
    "NodeUnprepareResourcesRequest": {"claims": "1 *Claim"},
    "NodeUnprepareResourceResponse": {"error": "1 string"},
    "NodeUnprepareResourcesResponse": {"claims": "1 map NodeUnprepareResourceResponse"},
}

HEALTH: Described = {
    "NodeWatchResourcesRequest": {},
    "DeviceIdentifier": {"pool_name": "1 string", "device_name": "2 string"},
    "DeviceHealth": {
        "device": "1 DeviceIdentifier",
        "health": "2 int32",            # an enumeration
        "last_updated_time": "3 int64", "message": "5 string",
    },
    "NodeWatchResourcesResponse": {"devices": "1 *DeviceHealth"},
}

RUNTIME: Described = {
    "VersionRequest": {"version": "1 string"},
    "VersionResponse": {"runtime_name": "2 string", "runtime_version": "3 string"},
    "StatusRequest": {"verbose": "1 bool"},
    "StatusResponse": {"info": "2 map"},
}

_Field = descriptor_pb2.FieldDescriptorProto
_PLAIN = {
    "string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
}


def _add(message: Any, package: str, name: str, words: str) -> None:
    number, kind, *of = words.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind[0] == "*" or kind == "map" else (
        _Field.LABEL_OPTIONAL)
    kind = kind.removeprefix("*")
    if kind == "map":                   # encoded as a list of messages with key and value
        kind = f"{message.name}.{name.capitalize()}Entry"
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add(entry, package, "key", "1 string")
        _add(entry, package, "value", f"2 {of[0] if of else 'string'}")
    if kind in _PLAIN:
        field.type = _PLAIN[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def classes(package: str, described: Described) -> dict[str, Any]:
    """The message classes of a package, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"nvshare/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        for field, words in fields.items():
            _add(message, package, field, words)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    # 3.21, which Debian 12 has, has no GetMessageClass, and later ones have no MessageFactory.
    make = getattr(message_factory, "GetMessageClass", None) or (
        message_factory.MessageFactory(pool).GetPrototype)
    return {
        name: make(pool.FindMessageTypeByName(f"{package}.{name}")) for name in described
    }
