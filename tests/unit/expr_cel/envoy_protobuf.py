"""Envoy's messages in Google's protobuf library, which reads and writes them for tests.

The descriptors are written here from Envoy's .proto files, apart from our own tables.
"""

from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

_KINDS = {
    "string": 9,
    "bytes": 12,
    "bool": 8,
    "int64": 3,
    "int32": 5,
    "uint32": 13,
}
_FILE = """
a.AttributeContext.Peer
  Address address = 1; string service = 2; map labels = 3; string principal = 4
  string certificate = 5
a.AttributeContext.Request
  google.protobuf.Timestamp time = 1; AttributeContext.HttpRequest http = 2
a.AttributeContext.HttpRequest
  string id = 1; string method = 2; map headers = 3; string path = 4; string host = 5
  string scheme = 6; string query = 7; string fragment = 8; int64 size = 9
  string protocol = 10; string body = 11; bytes raw_body = 12; HeaderMap header_map = 13
a.AttributeContext.TLSSession
  string sni = 1
a.AttributeContext
  AttributeContext.Peer source = 1; AttributeContext.Peer destination = 2
  AttributeContext.Request request = 4; map context_extensions = 10
  Metadata metadata_context = 11; AttributeContext.TLSSession tls_session = 12
  Metadata route_metadata_context = 13
a.CheckRequest
  AttributeContext attributes = 1
a.CheckResponse
  Status status = 1; oneof DeniedHttpResponse denied_response = 2
  oneof OkHttpResponse ok_response = 3; google.protobuf.Struct dynamic_metadata = 4
  oneof DeniedHttpResponse error_response = 5
a.DeniedHttpResponse
  HttpStatus status = 1; repeated HeaderValueOption headers = 2; string body = 3
a.OkHttpResponse
  repeated HeaderValueOption headers = 2; google.protobuf.Struct dynamic_metadata = 3
  repeated string headers_to_remove = 5
  repeated HeaderValueOption response_headers_to_add = 6
  repeated QueryParameter query_parameters_to_set = 7
  repeated string query_parameters_to_remove = 8
a.Status
  int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3
a.HttpStatus
  int32 code = 1
a.HeaderValueOption
  HeaderValue header = 1; google.protobuf.BoolValue append = 2; int32 append_action = 3
  bool keep_empty_value = 4
a.HeaderValue
  string key = 1; string value = 2; bytes raw_value = 3
a.HeaderMap
  repeated HeaderValue headers = 1
a.QueryParameter
  string key = 1; string value = 2
a.Address
  oneof SocketAddress socket_address = 1; oneof Pipe pipe = 2
a.SocketAddress
  int32 protocol = 1; string address = 2; oneof uint32 port_value = 3
  oneof string named_port = 4; string resolver_name = 5; bool ipv4_compat = 6
a.Pipe
  string path = 1; uint32 mode = 2
a.Metadata
  mapof google.protobuf.Struct filter_metadata = 1
  mapof google.protobuf.Any typed_filter_metadata = 2
"""
"""Message names without their packages; enums are int32, which is the same on the wire.
"""


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="a", package="a", syntax="proto3")
    for known in (any_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        file.dependency.append(known.DESCRIPTOR.name)
    message = descriptor_pb2.DescriptorProto()
    for line in _FILE.strip().splitlines():
        if not line.startswith(" "):
            message = file.message_type.add(name=line[2:].replace(".", "_"))
            continue
        for part in line.split(";"):
            _add(message, *part.replace(" =", "").split())
    pool.Add(file)
    return pool


def _add(message: descriptor_pb2.DescriptorProto, *words: str) -> None:
    *label, kind, name, number = words
    field = message.field.add(name=name, number=int(number), label=1)
    if label == ["repeated"]:
        field.label = 3
    elif label == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name="which")
        field.oneof_index = 0
    if kind == "map" or label == ["mapof"]:
        entry = message.nested_type.add(
            name=f"{''.join(map(str.capitalize, name.split('_')))}Entry"
        )
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=9)
        value = entry.field.add(name="value", number=2, label=1)
        _type(value, "string" if kind == "map" else kind)
        field.label, field.type = 3, 11
        field.type_name = f".a.{message.name}.{entry.name}"
        return
    _type(field, kind)


def _type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _KINDS:
        field.type = _KINDS[kind]
        return
    field.type = 11
    is_known = kind.startswith("google.")
    field.type_name = f".{kind}" if is_known else f".a.{kind.replace('.', '_')}"


_POOL = _pool()


def message(name: str) -> Any:
    """Return a class of messages, such as ``CheckRequest``."""
    found = _POOL.FindMessageTypeByName(f"a.{name}")
    return message_factory.GetMessageClass(found)
