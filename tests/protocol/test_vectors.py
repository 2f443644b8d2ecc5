"""Golden bytes: every vector of aiorocket_protocol decodes to what it says; canonical ones come back byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

import aiorocket_protocol as protocol
from aiorocket_protocol import FrameSplitter, ProtocolError, RecordView, RegisterBrokerBody, fastjson
from aiorocket_protocol.codec import CODECS
from aiorocket_protocol.command import JSON, MSGPACK, ROCKETMQ
from aiorocket_protocol.compiled import Packed

VECTORS = Path(__file__).resolve().parents[2] / "protocol" / "aiorocket_protocol" / "vectors"
CODEC_TYPES = {"json": JSON, "rocketmq": ROCKETMQ, "msgpack": MSGPACK}


def vectors(file: str) -> pytest.MarkDecorator:
    entries = json.loads((VECTORS / file).read_text(encoding="utf-8"))["vectors"]
    ids = [f"{entry.get('codec', entry.get('kind', ''))}:{entry['name']}" for entry in entries]
    assert len(set(ids)) == len(ids), f"{file}: two vectors of one name"
    return pytest.mark.parametrize("vector", entries, ids=ids)


@vectors("frames.json")
def test_frame(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    splitter = FrameSplitter()
    frames = splitter.feed(data)
    assert [[kind, header.hex(), body.hex()] for kind, header, body in frames] == vector["frames"]
    assert splitter.partial == (vector["rest"] > 0)
    encoded = b"".join(protocol.encode_frame(*frame) for frame in frames)
    assert encoded == data[: len(data) - vector["rest"]]


@vectors("headers.json")
def test_header(vector: dict[str, Any]) -> None:
    codec = CODECS[CODEC_TYPES[vector["codec"]]]
    data = bytes.fromhex(vector["hex"])
    command = codec.decode_header(data)
    for name, value in vector["decoded"].items():
        found = getattr(command, name)
        assert (msgpack.unpackb(found) if isinstance(found, Packed) else found) == value, name
    if "header" in vector:
        header_class = getattr(protocol, vector["header"])
        header = command.read(header_class)
        assert type(header) is header_class
        assert list(header) == vector["values"]
        sent = protocol.RemotingCommand(**_head_of(command), header=header)
        assert codec.decode_header(codec.encode_header(sent)).read(header_class) == header
        if vector["canonical"] and (command.fields is None or len(msgpack.unpackb(command.fields)) == len(header)):
            assert codec.encode_header(sent) == data
    if vector["canonical"]:
        assert codec.encode_header(command) == data


def _head_of(command: protocol.RemotingCommand) -> dict[str, Any]:
    return {name: getattr(command, name) for name in ("code", "opaque", "flag", "language", "version", "remark")}


@vectors("recorded.json")
def test_recorded(vector: dict[str, Any]) -> None:
    (frame,) = FrameSplitter().feed(bytes.fromhex(vector["hex"]))
    command = protocol.decode(*frame)
    if "header" in vector:
        assert list(command.read(getattr(protocol, vector["header"]))) == vector["values"]
    else:
        assert protocol.decode_body(protocol.HeartbeatData, command.body, JSON).to_plain() == vector["plain"]


@vectors("records.json")
def test_record(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    expected = vector["decoded"]
    assert protocol.check_record(data, 0) == len(data)
    for buffer, at in ((data, 0), (data + data, 1)):
        view = protocol.split_records(buffer)[at]
        assert view.size == len(data)
        for name, value in expected.items():
            assert getattr(view, name) == (bytes.fromhex(value) if name == "body" else value), name
    if vector["canonical"]:
        assert encode_again(view) == data


def encode_again(view: RecordView) -> bytes:
    return protocol.encode_record(
        topic=view.topic.encode(),
        body=view.raw_body,
        properties=view.raw_properties,
        queue_id=view.queue_id,
        queue_offset=view.queue_offset,
        physical_offset=view.physical_offset,
        flag=view.flag,
        sys_flag=view.sys_flag,
        born_timestamp=view.born_timestamp,
        born_host=view.born_host_bytes,
        store_timestamp=view.store_timestamp,
        store_host=view.store_host_bytes,
        reconsume_times=view.reconsume_times,
        prepared_transaction_offset=view.prepared_transaction_offset,
    )


@vectors("properties.json")
def test_properties(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    properties = protocol.decode_properties(data)
    assert properties == vector["decoded"]
    for name in [*properties, "A", "TAGS", "KEYS", "absent"]:
        found = protocol.find_property(data, name.encode())
        assert (found.decode() if found is not None else None) == properties.get(name)
    if vector["canonical"]:
        assert protocol.encode_properties(properties) == data


@vectors("batches.json")
def test_batch(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    items = protocol.decode_batch(data)
    assert [[flag, body.hex(), properties.hex()] for body, flag, properties in items] == vector["items"]
    assert protocol.encode_batch(items) == data


@vectors("ids.json")
def test_id(vector: dict[str, Any]) -> None:
    if "id" in vector:
        host = protocol.pack_host(vector["host"])
        assert protocol.unpack_host(host) == vector["host"]
        assert protocol.offset_msg_id(host, vector["offset"]) == vector["id"]
        ip, port, offset = protocol.parse_offset_msg_id(vector["id"])
        assert (f"{ip}:{port}", offset) == (vector["host"], vector["offset"])
    elif "tag" in vector:
        assert protocol.tags_code(vector["tag"]) == vector["code"]
    else:
        body, host = bytes.fromhex(vector["body"]), bytes(8)
        record = protocol.encode_record(b"T", body, b"", 0, 0, 0, 0, 0, 0, host, 0, host)
        assert protocol.RecordView(record, 0, len(record)).body_crc == vector["crc"]


@vectors("bodies.json")
def test_body(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    body_class = getattr(protocol, vector["class"])
    if vector["codec"] == "compressed":
        value = RegisterBrokerBody.from_compressed(data)
        assert RegisterBrokerBody.from_compressed(value.compressed()) == value
    else:
        value = protocol.decode_body(body_class, data, CODEC_TYPES[vector["codec"]])
    assert value.to_plain() == vector["plain"]
    for serialize_type in CODECS:
        encoded = protocol.encode_body(value, serialize_type)
        assert protocol.decode_body(body_class, encoded, serialize_type) == value
    if vector["canonical"]:
        assert protocol.encode_body(value, CODEC_TYPES[vector["codec"]]) == data


@vectors("fastjson.json")
def test_fastjson(vector: dict[str, Any]) -> None:
    def text_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key if isinstance(key, str) else json.dumps(key, separators=(",", ":")): text_keys(item)
                for key, item in value.items()
            }
        return [text_keys(item) for item in value] if isinstance(value, list) else value

    assert text_keys(fastjson.loads(bytes.fromhex(vector["hex"]))) == vector["plain"]


def _bodies_of_records(data: bytes) -> object:
    return [view.body for view in protocol.split_records(data)]


READERS: dict[str, Callable[[bytes], object]] = {
    "frame": lambda data: FrameSplitter().feed(data),
    "json": CODECS[JSON].decode_header,
    "rocketmq": CODECS[ROCKETMQ].decode_header,
    "msgpack": CODECS[MSGPACK].decode_header,
    "record": protocol.split_records,
    "record-crc": lambda data: protocol.check_record(data, 0),
    "record-body": _bodies_of_records,
    "properties": protocol.decode_properties,
    "batch": protocol.decode_batch,
    "fastjson": fastjson.loads,
    "route": lambda data: protocol.decode_body(protocol.TopicRouteData, data, JSON),
    "heartbeat": lambda data: protocol.decode_body(protocol.HeartbeatData, data, JSON),
    "register-compressed": RegisterBrokerBody.from_compressed,
}


@vectors("invalid.json")
def test_invalid_input_ends_in_one_error_that_says_where(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        READERS[vector["kind"]](bytes.fromhex(vector["hex"]))
    error = caught.value
    assert error.where == vector["where"]
    assert error.what
    assert len(str(error)) < 500
    assert str(error) == f"{error.where}: {error.what}"
