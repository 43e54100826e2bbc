"""A client that knows nothing but an address: methods and messages come by server reflection."""

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

OPEN_SERVICES = ("grpc.health.", "grpc.reflection.")
PATIENCE = 30.0


class Reflected:
    """Blocking calls with dicts for messages, as `grpcurl` makes them."""

    def __init__(self, address: str, key: str = "") -> None:
        self._channel = grpc.insecure_channel(address)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._database = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool = DescriptorPool(self._database)

    def close(self) -> None:
        self._channel.close()

    def services(self) -> list[str]:
        return sorted(self._database.get_services())

    def methods(self) -> Iterator[str]:
        """`service/Method` of all services that need a key."""
        for name in self.services():
            if not name.startswith(OPEN_SERVICES):
                service = descriptor_pb2.ServiceDescriptorProto()
                self._pool.FindServiceByName(name).CopyToProto(service)
                for method in service.method:
                    yield f"{name}/{method.name}"

    def call(self, method: str, **fields: Any) -> dict[str, Any]:
        """A call with one answer."""
        answer: dict[str, Any]
        (answer,) = self.stream(method, **fields)
        return answer

    def stream(self, method: str, *requests: dict[str, Any], **fields: Any) -> Iterator[Any]:
        """A call's answers as they come."""
        service, _, name = method.partition("/")
        found = self._pool.FindServiceByName(service).methods_by_name[name]
        messages = [ParseDict(each, self._message(found)()) for each in requests or [fields]]
        call: Any = self._channel.stream_stream(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(found.output_type).FromString,
        )
        for answer in call(iter(messages), metadata=self._metadata, timeout=PATIENCE):
            yield MessageToDict(answer)

    def refusal(self, method: str) -> grpc.StatusCode:
        """The status of a call with an empty message."""
        try:
            list(self.stream(method))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK

    def _message(self, method: MethodDescriptor) -> Any:
        return GetMessageClass(method.input_type)
