"""The wire format: what protobuf itself writes is read back, and hostile bytes are refused in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.protobuf import Message, WireError, field


def test_reads_what_protobuf_writes():
    gcs_pb2 = pytest.importorskip("ray.core.generated.gcs_pb2")
    node = gcs_pb2.GcsNodeInfo(
        node_id=b"\x01\xff", node_manager_address="10.0.0.5", node_manager_port=40001, state=1, is_head_node=True,
        start_time_ms=1795302615508, resources_total={"GPU": 8.0, "CPU": 0.5},
        death_info={"reason": 2, "reason_message": "gone"},
    )  # fmt: skip
    found = Message(node.SerializeToString())
    assert (found.blob(1), found.text(2), found.integer(5)) == (b"\x01\xff", "10.0.0.5", 40001)
    assert (found.integer(7), found.integer(25), found.integer(23)) == (1, 1, 1795302615508)
    assert found.quantities(11) == {"CPU": 0.5, "GPU": 8.0}
    assert (found.message(29).integer(1), found.message(29).text(2)) == (2, "gone")
    assert (found.integer(99), found.text(99), found.messages(99)) == (0, "", [])


def test_writes_what_protobuf_reads():
    service = pytest.importorskip("ray.core.generated.gcs_service_pb2")
    request = service.InternalKVGetRequest.FromString(field(1, b"k" * 300) + field(2, b"cluster"))
    assert (request.key, request.namespace) == (b"k" * 300, b"cluster")


def test_negative_numbers_and_other_types():
    assert Message(b"\x08" + b"\xff" * 9 + b"\x01").integer(1) == -1
    assert Message(field(1, 300)).integer(1) == 300
    assert Message(field(1, b"text")).integer(1) == 0
    assert Message(field(1, 7)).text(1) == ""
    assert Message(field(1, b"a\x1b[31m\xff")).text(1) == "a [31m\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\x08" + b"\x80" * 11,
        b"\x00\x01",
        b"\x0b",
        b"\x09\0\0",
        b"\x0d\0",
    ],
)
def test_broken_bytes_are_refused(data: bytes):
    with pytest.raises(WireError):
        Message(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes):
    try:
        message = Message(data)
        for number in range(1, 20):
            message.integer(number), message.text(number), message.blob(number)
            message.quantities(number)
    except WireError:
        return
