"""The contract's files and the code that was generated of them.

Knows descriptors. Keeps true: nobody has written the generated code by hand, or left it behind when
a file changed; it is imported by the path that its file has; a scalar that is not set can be told
from a zero.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from fourstep.v1 import (
    control_pb2,
    control_pb2_grpc,
    errors_pb2,
    errors_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from tests.sources import ROOT

PAIRS = [
    (control_pb2, control_pb2_grpc),
    (errors_pb2, errors_pb2_grpc),
    (inference_pb2, inference_pb2_grpc),
]


def written() -> dict[str, FileDescriptorProto]:
    """What the files say, by their paths."""
    buf = Path(sys.executable).with_name("buf")
    command = [buf, "build", "proto", "--exclude-source-info", "--output", "-#format=binpb"]
    data = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    found = {file.name: file for file in FileDescriptorSet.FromString(data).file}
    for file in found.values():
        file.DiscardUnknownFields()  # which buf has of its own
        _without_json_names(file.message_type)
    return found


def _without_json_names(messages: Iterable[DescriptorProto]) -> None:
    """Which follow from the names, and generated code leaves out."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _without_json_names(message.nested_type)


def test_generated_code_is_of_the_files() -> None:
    files = written()
    assert {module.DESCRIPTOR.name for module, _ in PAIRS} == set(files)
    for module, _ in PAIRS:
        generated = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(generated)
        assert generated == files[generated.name]


@pytest.mark.parametrize(("module", "stubs"), PAIRS)
def test_the_import_path_is_the_files(module: ModuleType, stubs: ModuleType) -> None:
    path = module.DESCRIPTOR.name.removesuffix(".proto").replace("/", ".")
    assert module.__name__ == f"{path}_pb2"
    assert stubs.__name__ == f"{path}_pb2_grpc"
    for name, service in module.DESCRIPTOR.services_by_name.items():
        assert set(service.methods_by_name) <= vars(getattr(stubs, f"{name}Servicer")).keys()


def fields(message: Descriptor) -> Iterator[FieldDescriptor]:
    if not message.GetOptions().map_entry:
        yield from message.fields
        for nested in message.nested_types:
            yield from fields(nested)


@pytest.mark.parametrize("module", [module for module, _ in PAIRS])
def test_every_scalar_has_presence(module: ModuleType) -> None:
    found = [
        one for each in module.DESCRIPTOR.message_types_by_name.values() for one in fields(each)
    ]
    assert found
    assert not [one.full_name for one in found if not one.is_repeated and not one.has_presence]
