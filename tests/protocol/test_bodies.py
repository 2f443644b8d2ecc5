"""Bodies in both forms, fastjson's dialect, subscriptions."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
import zlib
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    JSON,
    MAX_DECOMPRESSED,
    MSGPACK,
    ROCKETMQ,
    BrokerData,
    ClusterInfo,
    ConsumerConnection,
    ConsumerData,
    ConsumerListBody,
    DataVersion,
    GroupListBody,
    HeartbeatData,
    KVTable,
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    ProtocolError,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    TopicConfig,
    TopicConfigTable,
    TopicListBody,
    TopicRouteData,
    bare_list,
    decode_body,
    encode_body,
    fastjson,
    list_body,
    table_body,
    tags_code,
)
from aiorocket_protocol.bodies import ClientConnection, decode_plain
from aiorocket_protocol.names import CONSUME_FROM_WHERE, CONSUME_TYPES, MESSAGE_MODELS, TOPIC_FILTER_TYPES
from aiorocket_protocol.plain import Plain

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text("abcT%_-|01", min_size=1, max_size=12)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
queues = st.builds(MessageQueue, NAME, NAME, INT32)
subscriptions = st.builds(SubscriptionData, NAME, TEXT, st.frozensets(TEXT), st.frozensets(INT32), INT64, TEXT)
broker_datas = st.builds(BrokerData, TEXT, NAME, st.dictionaries(INT64, TEXT, max_size=3))
versions = st.builds(DataVersion, INT64, INT64, INT64)
filter_types = st.sampled_from(TOPIC_FILTER_TYPES)
topics = st.builds(
    TopicConfig, NAME, INT32, INT32, INT32, filter_types, INT32, st.booleans(), st.dictionaries(TEXT, TEXT)
)
topic_lists = st.lists(topics, max_size=3, unique_by=lambda topic: topic.topic_name)
kinds = (
    st.sampled_from([*CONSUME_TYPES, "A_NAME_OF_LATER"]),
    st.sampled_from(MESSAGE_MODELS),
    st.sampled_from(CONSUME_FROM_WHERE),
)
consumers = st.builds(ConsumerData, NAME, *kinds, st.lists(subscriptions, max_size=2))
BODIES: dict[type[Any], st.SearchStrategy[Any]] = {
    TopicRouteData: st.builds(
        TopicRouteData,
        st.lists(st.builds(QueueData, NAME, INT32, INT32, INT32, INT32), max_size=3),
        st.lists(broker_datas, max_size=3),
        st.none() | TEXT,
    ),
    ClusterInfo: st.builds(
        ClusterInfo, st.dictionaries(TEXT, broker_datas, max_size=2), st.dictionaries(TEXT, st.lists(TEXT, max_size=2))
    ),
    HeartbeatData: st.builds(
        HeartbeatData,
        TEXT,
        st.lists(TEXT, max_size=2),
        st.lists(consumers, max_size=2),
        fingerprint=INT64,
        without_sub=st.booleans(),
    ),
    ConsumerListBody: st.builds(ConsumerListBody, st.lists(TEXT)),
    GroupListBody: st.builds(GroupListBody, st.lists(TEXT)),
    TopicListBody: st.builds(TopicListBody, st.lists(TEXT)),
    KVTable: st.builds(KVTable, st.dictionaries(TEXT, TEXT)),
    LockBatchBody: st.builds(LockBatchBody, TEXT, TEXT, st.lists(queues, max_size=3)),
    LockBatchResult: st.lists(st.tuples(queues, st.integers(1, 2**40)), max_size=3).map(
        lambda held: LockBatchResult([queue for queue, _ in held], tuple(epoch for _, epoch in held))
    ),
    ConsumerConnection: st.builds(
        ConsumerConnection,
        st.lists(st.builds(ClientConnection, TEXT, TEXT, st.sampled_from(["GO", "KLINGON"]), INT32), max_size=2),
        st.dictionaries(TEXT, subscriptions, max_size=2),
        *kinds,
    ),
    TopicConfigTable: st.builds(TopicConfigTable, versions, topic_lists),
    RegisterBrokerBody: st.builds(RegisterBrokerBody, versions, topic_lists, st.lists(TEXT, max_size=2)),
}


@given(st.sampled_from(list(BODIES)).flatmap(BODIES.__getitem__))
def test_round_trip(value: Any) -> None:
    for serialize_type in (JSON, ROCKETMQ, MSGPACK):
        data = encode_body(value, serialize_type)
        assert decode_body(type(value), data, serialize_type) == value
    assert json.loads(encode_body(value, JSON)) == msgpack.unpackb(encode_body(value, MSGPACK))


floats = st.floats(allow_nan=False, allow_infinity=False)
simple = st.none() | st.booleans() | st.integers(-9, 9) | floats | st.text(max_size=3)
plains = st.recursive(
    simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(st.sampled_from(list(BODIES)).flatmap(lambda body: st.tuples(st.just(body), BODIES[body])), plains, st.data())
def test_a_member_of_another_kind_ends_in_a_value_or_one_error(
    pair: tuple[type[Any], Any], replacement: Any, data: st.DataObject
) -> None:
    body_class, value = pair
    plain = value.to_plain()
    inner = plain
    for _ in range(data.draw(st.integers(0, 4))):
        members = inner.values() if isinstance(inner, dict) else inner
        nested = [item for item in members if isinstance(item, (dict, list))]
        if nested:
            inner = data.draw(st.sampled_from(nested))
    if inner:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        inner[data.draw(st.sampled_from(keys))] = replacement
    for serialize_type in (JSON, MSGPACK):
        try:
            decode_body(body_class, encode_body(plain, serialize_type), serialize_type)
        except ProtocolError as error:
            assert error.where


@given(st.sampled_from(list(BODIES)), st.sampled_from([JSON, MSGPACK]), st.binary(max_size=100))
def test_any_bytes_end_in_a_value_or_one_error(body_class: type[Any], serialize_type: int, data: bytes) -> None:
    try:
        decode_body(body_class, data, serialize_type)
    except ProtocolError:
        return


class Long(list[int]):
    def __repr__(self) -> str:
        raise AssertionError("1 MiB of it takes as long as to be read")


def test_of_a_long_list_in_the_wrong_place_not_all_is_shown() -> None:
    with pytest.raises(ProtocolError, match="an object is needed, found Long of 3"):
        Plain(Long([1, 2, 3]), "Body")
    with pytest.raises(ProtocolError, match=r"Body\.key: text is needed, found Long of 1"):
        Plain({"key": Long([1])}, "Body").text("key")


@given(versions, topic_lists, st.lists(NAME, max_size=2))
def test_compressed_registration(version: DataVersion, configs: list[TopicConfig], servers: list[str]) -> None:
    configs = [
        TopicConfig(topic.topic_name, topic.read_queue_nums & 255, topic.write_queue_nums & 255, topic.perm & 7)
        for topic in configs
    ]
    body = RegisterBrokerBody(version, configs, servers)
    assert RegisterBrokerBody.from_compressed(body.compressed()) == body


@pytest.mark.parametrize(
    "text", ["", "T1", "T1 8 8 x SINGLE_TAG", "T1 8 8 -6 SINGLE_TAG", "T1 8 8 6 S {", "T1 8 8 6 S []"]
)
def test_topic_texts_that_are_none(text: str) -> None:
    with pytest.raises(ProtocolError):
        TopicConfig.from_text(text)


def test_a_route_is_compact_with_quoted_broker_ids() -> None:
    data = encode_body(TopicRouteData([], [BrokerData("c", "b", {1: "10.0.0.2:1", 0: "10.0.0.1:1"})]), JSON)
    assert b'"brokerAddrs":{"0":"10.0.0.1:1","1":"10.0.0.2:1"}' in data
    assert b" " not in data


def test_sets_are_there_when_empty() -> None:
    assert encode_body(LockBatchResult([]), JSON) == b'{"lockOKMQSet":[]}'
    assert encode_body(ConsumerListBody([]), JSON) == b'{"consumerIdList":[]}'


def test_bodies_that_cannot_be_written() -> None:
    for serialize_type in (JSON, MSGPACK):
        for value in ({"a": {1, 2}}, {"a": "\ud800"}):
            with pytest.raises(ProtocolError):
                encode_body(value, serialize_type)
    with pytest.raises(ProtocolError):
        encode_body({"a": float("nan")}, JSON)


# ---- fastjson ------------------------------------------------------------------------------------------------------


@given(plains)
def test_standard_json_reads_as_itself(value: Any) -> None:
    assert fastjson.loads(json.dumps(value).encode()) == value
    assert fastjson.loads(fastjson.dumps(value)) == value


@given(st.text(st.sampled_from('{}[]:,"01- \\utrefalsn.'), max_size=30))
def test_any_text_ends_in_a_value_or_one_error(text: str) -> None:
    try:
        fastjson.loads(text.encode())
    except ProtocolError as error:
        assert error.where == "JSON"


def test_half_a_surrogate_pair_is_no_text() -> None:
    """A client id of that kind could be told to no member of its group: not one would learn of the others any more."""
    for data in (rb'"\ud800"', rb'{"a":["\uDFFF"]}', rb'"\ud83d\ud83d"', rb'{0:"\\\ud800"}'):
        with pytest.raises(ProtocolError, match="surrogate"):
            fastjson.loads(data)
    assert fastjson.loads(rb'"\ud83d\ude00 \uD7FF \\ud800"') == "\U0001f600 \ud7ff \\ud800"


def test_more_objects_than_a_body_needs_are_not_read() -> None:
    """1 MiB of empty lists took 80 ms, of members 70 to 130."""
    members = ",".join(f'"{number}":1' for number in range(8_001))
    for some in (b"[" + b"[]," * 8_000 + b"{}]", b'["' + b"{" * 8_002 + b'"]', f"{{{members}}}".encode()):
        assert fastjson.loads(some) == fastjson.loads(some, most=501)
        with pytest.raises(ProtocolError, match="more than 8000 objects and lists"):
            fastjson.loads(some, most=500)


@pytest.mark.parametrize("text", ['{"0":[1e299,-2.5,3]}', "{0:[1e299,-2.5,3]}"])
def test_a_stranger_s_fractions_and_exponents_stay_text(text: str) -> None:
    """They are in no body that a server reads, and a mebibyte of ``1e299`` took 1.5 s to become numbers."""
    assert fastjson.loads(text.encode(), most=100) == {"0": ["1e299", "-2.5", 3]}
    assert fastjson.loads(text.encode()) == {"0": [1e299, -2.5, 3]}


@pytest.mark.parametrize("text", ['{0:1,"a":[2,3]}', '["a",{},[],null,]', '{{"b":0}:1,1:2,}'])
def test_of_json_that_is_not_standard_so_many_values_are_read(text: str) -> None:
    data = text.encode()
    fastjson.loads(data, most=5)
    with pytest.raises(ProtocolError, match="more than 3 values in JSON that is not standard"):
        fastjson.loads(data, most=3)
    assert len(fastjson.loads(b"[" + b"1," * 9 + b"1]", most=3)) == 10  # nobody counts those of any other


def test_objects_as_keys_count_as_values_of_json_that_is_not_standard() -> None:
    """Of 8,192 with one member each half did not count: 72 ms."""
    assert fastjson.loads(b"{{}:1,{}:1}", most=5) == {(): 1}
    with pytest.raises(ProtocolError, match="more than 4 values"):
        fastjson.loads(b"{{}:1,{}:1}", most=4)


def test_long_json_that_is_not_standard_is_read_once() -> None:
    """1 MiB that was standard but for its end took half as long again to be read in Python too."""
    assert fastjson.loads(b"{0:" + b" " * 94 + b"1}", most=4) == {"0": 1}
    with pytest.raises(ProtocolError, match="JSON that is not standard may have 96 characters"):
        fastjson.loads(b"{0:" + b" " * 94 + b"1}", most=3)
    assert fastjson.loads(b"[" + b" " * 99 + b"1]", most=3) == [1]


def test_an_error_of_msgpack_without_words_is_told_by_its_name() -> None:
    with pytest.raises(ProtocolError, match="not msgpack: FormatError"):
        decode_plain(b"\xc1", MSGPACK)


@given(st.dictionaries(queues, st.integers(-5, 5), max_size=4))
def test_maps_keyed_by_queues(table: dict[MessageQueue, int]) -> None:
    data = fastjson.dumps({"offsetTable": table})
    assert b'":{"' not in data.replace(b'{"offsetTable":', b"")
    found = fastjson.loads(data)["offsetTable"]
    assert {MessageQueue.from_plain(key): value for key, value in found.items()} == table


def test_a_key_that_is_the_text_of_an_object() -> None:
    """Java reads this form of a queue key too."""
    key = '{"brokerName":"b","queueId":3,"topic":"T"}'
    (found,) = fastjson.loads(json.dumps({key: 42}).encode())
    assert MessageQueue.from_plain(found) == MessageQueue("T", "b", 3)
    for bad in ("x", "[1]", '{"topic":"T"}', 5, None, (("topic", "T"),), ("T",)):
        with pytest.raises(ProtocolError):
            MessageQueue.from_plain(bad)


# ---- subscriptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "sub_string", "tags"),
    [("*", "*", set()), ("", "*", set()), (None, "*", set()), (" * ", "*", set()), ("A", "A", {"A"}),
     ("A||B", "A||B", {"A", "B"}), (" A || || B ", " A || || B ", {"A", "B"})],
)  # fmt: skip
def test_tag_expressions(expression: str | None, sub_string: str, tags: set[str]) -> None:
    subscription = SubscriptionData.parse("T", expression, 7)
    assert (subscription.sub_string, subscription.sub_version) == (sub_string, 7)
    assert subscription.tags_set == frozenset(tags)
    assert subscription.code_set == {tags_code(tag) for tag in tags}


def test_an_expression_without_tags_is_refused() -> None:
    with pytest.raises(ProtocolError, match="names no tag"):
        SubscriptionData.parse("T", "||")


def test_tag_matching_is_by_hash_then_by_text() -> None:
    subscription = SubscriptionData.parse("T", "Aa")
    assert subscription.code_set == {tags_code("BB")}  # the same hash: the broker lets it through
    assert not subscription.matches_tag("BB")  # the client does not
    assert subscription.matches_tag("Aa")
    everything = SubscriptionData.parse("T")
    assert not everything.code_set
    assert everything.matches_tag("")
    assert SubscriptionData.parse("T", "polygenelubricants").code_set == {-(2**31)}


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(ProtocolError("bad", where="there")))
    assert (error.what, error.where, str(error)) == ("bad", "there", "there: bad")


def test_of_a_compressed_registration_no_more_is_unfolded_than_is_read() -> None:
    version, one = DataVersion(1, 1), TopicConfig("t" * 60_000).to_text().encode()
    some = b"".join(len(text).to_bytes(4, "big") + text for text in [json.dumps(version.to_plain()).encode()])
    some += (2**31 - 1).to_bytes(4, "big")
    bomb = zlib.compress(some + (len(one).to_bytes(4, "big") + one) * (MAX_DECOMPRESSED // len(one) + 1), 1)
    zeros = zlib.compress(some + bytes(4) + len(one).to_bytes(4, "big") + bytes(MAX_DECOMPRESSED), 1)
    tracemalloc.start()
    try:
        topics = RegisterBrokerBody.one_by_one(bomb, compressed=True, serialize_type=JSON)
        with pytest.raises(ProtocolError, match=f"more than {MAX_DECOMPRESSED} bytes"):
            for _ in topics:
                pass
        with pytest.raises(ProtocolError):
            RegisterBrokerBody.from_compressed(zeros)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    long = zlib.compress(some + (1 << 20).to_bytes(4, "big") + bytes(1 << 20))
    with pytest.raises(ProtocolError, match="1048576 bytes claimed, at most 65536 are read"):
        RegisterBrokerBody.from_compressed(long)


#: Up to where msgpack's lengths change their form; JSON's do not.
@pytest.mark.parametrize(
    ("kind", "count"), [(JSON, 0), (JSON, 1), (JSON, 10_000), *((MSGPACK, count) for count in (0, 1, 15, 16, 70_000))]
)
def test_long_bodies_are_written_little_by_little(kind: int, count: int) -> None:
    head: dict[str, Any] = {"b": {"x": [1]}, "a": "é"}
    tail: dict[str, Any] = {"y": {}, "x": "é"}
    table = {f"{number}": {"n": number, "t": "é"} for number in range(count)}
    for writing, whole in (
        (table_body(head, "z", table.items(), lambda item: item, kind), {**head, "z": table}),
        (list_body(head, "z", table.values(), kind), {**head, "z": list(table.values())}),
        (
            table_body(head, "z", table.items(), lambda item: encode_body(dict([item]), kind), kind),
            {**head, "z": table},
        ),
        (table_body({}, "z", table.items(), lambda item: item, kind, tail), {"z": table, **tail}),
        (
            list_body(head, "z", [encode_body(each, kind) for each in table.values()], kind),
            {**head, "z": [*table.values()]},
        ),
        (list_body(head, "z", table.values(), kind, tail), {**head, "z": list(table.values()), **tail}),
        (bare_list(table.values(), kind), list(table.values())),
        (bare_list([encode_body(each, kind) for each in table.values()], kind), list(table.values())),
    ):
        turns, data = 0, b""
        try:
            while True:
                next(writing)
                turns += 1
        except StopIteration as end:
            data = end.value
        assert data == encode_body(whole, kind)
        assert turns >= max(len(data) // 200_000, count // 500)


@pytest.mark.parametrize("kind", [JSON, MSGPACK])
def test_a_body_that_no_frame_holds_is_not_written(kind: int) -> None:
    with pytest.raises(ProtocolError, match="larger than"):
        for _ in list_body({}, "z", itertools.repeat("x" * 100_000), kind):
            pass
