"""What is generated from `protos/` is what stands in `envoy_ext/_pb/`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("proto", sorted((ROOT / "protos").glob("*.proto")), ids=lambda path: path.name)
def test_generated_messages_are_those_of_their_proto(proto: Path, tmp_path: Path) -> None:
    """The same messages and services; the generator's own version may be another."""
    descriptor = tmp_path / "descriptor.bin"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(proto.parent)),
            *(f"--descriptor_set_out={descriptor}", str(proto)),
        ],
        check=True,
    )
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    (wanted,) = FileDescriptorSet.FromString(descriptor.read_bytes()).file
    module = __import__(f"envoy_ext._pb.{proto.stem}_pb2", fromlist=["DESCRIPTOR"])
    generated = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    generated.ClearField("source_code_info")
    wanted.ClearField("source_code_info")
    for file in (generated, wanted):
        for kind in (*file.message_type,):
            for field in kind.field:
                field.ClearField("json_name")
    assert generated == wanted
