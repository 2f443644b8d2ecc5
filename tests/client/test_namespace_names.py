"""Names with a namespace: what is wrapped comes out again, and what belongs to the cluster is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.namespace import unwrap, wrap


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("orders", "ns%orders"),
        ("ns%orders", "ns%orders"),
        ("%RETRY%billing", "%RETRY%ns%billing"),
        ("%DLQ%billing", "%DLQ%ns%billing"),
        ("%RETRY%ns%billing", "%RETRY%ns%billing"),
        ("other%orders", "ns%other%orders"),
        ("TBW102", "TBW102"),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("rmq_sys_TRACE", "rmq_sys_TRACE"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_wire_names(name: str, wire: str) -> None:
    assert wrap("ns", name) == wire
    assert wrap("ns", wire) == wire
    assert wrap("", name) == name == unwrap("", name)


def test_names_of_others_are_left_alone() -> None:
    assert unwrap("ns", "other%orders") == "other%orders"
    assert unwrap("ns", "orders") == "orders"
    assert unwrap("ns", "%RETRY%other%billing") == "%RETRY%other%billing"
    assert unwrap("ns", "%RETRY%ns%billing") == "%RETRY%billing"


NAMES = st.text("abn%_-", min_size=1, max_size=12)


@given(namespace=st.text("abn-", min_size=1, max_size=4), name=NAMES, outer=st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_unwrap_undoes_wrap(namespace: str, name: str, outer: str) -> None:
    plain = outer + name
    wire = wrap(namespace, plain)
    if wire != plain:
        assert unwrap(namespace, wire) == plain
    assert wrap(namespace, wire) == wire
