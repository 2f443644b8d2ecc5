"""Which peer works with what: a table that a run writes of the tests that passed. ``works.md`` is the one that is kept,
in README.md too; ``.ci/run`` demands that its run writes the same."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path

__all__ = ("KEPT", "OFFERED", "table")

KEPT = Path(__file__).resolve().parent / "works.md"

ON_OURS = (
    "Java 5.5.0", "Java 4.9.7", "Go 2.1.2", "C++ (PyPI 0.4.4)", "Node (ali-ons)", "gRPC through Apache's proxy",
)  # fmt: skip
ON_APACHES = ("aiorocket on Apache 5.5.0", "aiorocket on Apache 4.9.7")
FEATURES = {
    "push": "push, by tags",
    "retry": "retry of a failed message",
    "orderly": "orderly",
    "broadcasting": "broadcasting",
    "batch": "batches",
    "delay": "delay levels",
    "transaction": "transactions with check-back",
    "request-reply": "request and reply",
    "sql92": "SQL92 filters",
    "lite pull": "lite pull",
    "namespace": "namespaces",
    "trace": "message traces",
}
#: Of the clients in other languages.
MORE = {
    "pull": "pull consumer",
    "one-way": "one-way sends",
    "async": "many sends at a time",
    "restart": "offsets kept when the client starts again",
    "members": "queues divided among two members",
    "topics": "topics made and removed by its admin",
}
#: What else each client offers, as far as it really has it; a program of each does all of its own at the same time.
OFFERED = {
    "go": (
        "orderly", "broadcasting", "delay", "transaction", "request-reply", "sql92", "pull", "namespace", "trace",
        "one-way", "async", "restart", "members", "topics",
    ),
    "cpp": ("orderly", "broadcasting", "delay", "pull", "one-way", "async", "restart", "members"),
    "node": ("broadcasting", "delay", "sql92", "namespace", "async", "restart", "members"),
    "grpc": ("push", "retry", "orderly", "sql92", "timed", "transaction", "async", "restart"),
}  # fmt: skip
MIXED = "orderly, in one group with Java"
TIMED = "timer messages and recall"
TROUBLED = "through cut, stalled and silent connections"
CLUSTER = "masters, slaves and name servers go and come back"
CHOSEN = "a new master chosen by Apache's controller"
SHARED = "queues and offsets shared with Java, push and lite pull"
TRACES = "traces read by mqadmin"


def _rows() -> Iterator[tuple[str, str, str]]:
    """(feature, peer, the test that shows it)."""
    for version in ("5.5.0", "4.9.7"):
        for name, feature in FEATURES.items():
            yield feature, f"Java {version}", f"test_java.py::test_feature[{version}-{name}]"
        traces = f"test_java.py::test_traces_are_kept_and_read_back[{version}]"
        yield TRACES, f"Java {version}", traces
        yield "mqadmin's daily commands", f"Java {version}", f"test_mqadmin.py::test_nothing_was_refused[{version}]"
    yield "what the dashboard's pages ask", "Java 5.5.0", "test_dashboard.py::test_every_page_has_its_answer"
    for client, peer in zip(("go", "cpp", "node"), ON_OURS[2:5], strict=True):
        for feature in ("push", "retry", "batch"):
            if (client, feature) != ("node", "batch"):  # it has none
                yield FEATURES[feature], peer, f"test_clients.py::test_send_and_consume_by_tag[{client}]"
        for name in OFFERED[client]:
            yield {**FEATURES, **MORE}[name], peer, f"test_clients.py::test_feature[{client}-{name}]"
    for name in OFFERED["grpc"]:
        yield {**FEATURES, **MORE, "timed": TIMED}[name], ON_OURS[5], f"test_proxy.py::test_feature[{name}]"
    ours, older = ON_APACHES
    yield FEATURES["push"], ours, "test_smoke.py::test_send_consume_retry[apache-ours-ours]"
    yield FEATURES["retry"], ours, "test_smoke.py::test_send_consume_retry[apache-ours-ours]"
    yield (
        FEATURES["broadcasting"],
        ours,
        "test_consumers.py::test_everybody_in_a_broadcasting_group_gets_everything[apache]",
    )
    traced = "test_queries.py::test_mqadmin_reads_our_message_trace[apache]"
    for feature in (FEATURES["trace"], TRACES):
        yield feature, ours, traced
        yield feature, older, "test_older.py::test_traces"
    timed = "test_timed.py::test_messages_come_when_they_are_due_and_recalled_ones_do_not[apache]"
    yield TIMED, ours, timed
    yield FEATURES["sql92"], ours, "test_consumers.py::test_our_sql_filters[apache]"
    yield FEATURES["transaction"], ours, "test_transactions.py::test_our_transactions[apache]"
    yield (
        "dead letters read and replayed",
        ours,
        "test_dead_letters.py::test_dead_letters_are_read_and_replayed_once[apache]",
    )
    for peer, kind in ((ours, "apache"), (older, "apache_older")):
        for name in ("orderly", "batch", "delay", "request-reply", "lite pull", "namespace"):
            yield FEATURES[name], peer, f"test_features.py::test_ours_at_apaches[{kind}]"
    for version, name in (("5.5.0", "newest"), ("4.9.7", "older")):
        yield "ACL", f"Java {version}", f"test_access.py::test_javas_client_signs_in[{name}-plain]"
        yield "ACL and TLS", f"Java {version}", f"test_access.py::test_javas_client_signs_in[{name}-encrypted]"
    for client, peer in zip(("go", "cpp", "node"), ON_OURS[2:5], strict=True):
        yield "ACL", peer, f"test_access.py::test_other_clients_sign_in[{client}-signed]"
    users = "test_access.py::test_mqadmin_manages_users_and_their_rights"
    yield "users and rights by mqadmin", "Java 5.5.0", users
    for peer, version in ((ours, "5.5.0"), (older, "4.9.7")):
        for feature in ("ACL", "ACL and TLS"):
            yield feature, peer, f"test_acl_tls.py::test_signed_over_tls_everything_works[{version}]"
    yield "POP", ours, "test_pop.py::test_our_simple_consumer[apache]"
    yield "POP", "Java 5.5.0", "test_pop.py::test_javas_push_consumer_pops[ours]"
    yield "POP", ON_OURS[5], "test_proxy.py::test_the_grpc_client_sends_receives_and_settles"
    yield FEATURES["push"], older, "test_older.py::test_send_consume_retry"
    yield FEATURES["retry"], older, "test_older.py::test_send_consume_retry"
    yield (
        FEATURES["broadcasting"],
        older,
        "test_older.py::test_everybody_in_a_broadcasting_group_gets_everything",
    )
    yield FEATURES["sql92"], older, "test_older.py::test_sql_filters"
    yield FEATURES["transaction"], older, "test_older.py::test_transactions_with_check_back"
    yield "dead letters read and replayed", older, "test_older.py::test_dead_letters"
    for peer, kind in (("Java 5.5.0", "ours"), (ours, "apache"), (older, "apache_older")):
        yield MIXED, peer, f"test_orderly.py::test_java_and_we_share_a_group_in_order[{kind}]"
    for version in ("5.5.0", "4.9.7"):
        yield TROUBLED, f"Java {version}", f"test_chaos.py::test_javas_client[{version}]"
    for client, peer in zip(("go", "cpp", "node"), ON_OURS[2:5], strict=True):
        yield TROUBLED, peer, f"test_chaos.py::test_other_clients[{client}]"
    yield TROUBLED, ON_OURS[5], "test_chaos.py::test_the_grpc_client_and_apaches_proxy"
    for peer, version in ((ours, "5.5.0"), (older, "4.9.7")):
        test = f"test_cluster.py::test_members_of_a_cluster_go_away_and_come_back[{version}]"
        yield CLUSTER, peer, test
    for peer, version in ((ours, "5.5.0"), (older, "4.9.7")):
        yield TROUBLED, peer, f"test_chaos.py::test_our_client_at_apaches_broker[{version}]"
    yield CHOSEN, ours, "test_controller.py::test_a_new_master_is_chosen_and_nothing_is_lost"
    for peer, kind in (("Java 5.5.0", "ours"), (ours, "apache"), (older, "apache_older")):
        yield SHARED, peer, f"test_handover.py::test_java_and_we_share_a_group_and_its_offsets[{kind}]"


def table(passed: Container[str]) -> str:
    """Markdown: a row a feature, a column a peer. ``passed`` are the ids of the tests that did, without the folder."""
    found: dict[str, dict[str, bool]] = {}
    for feature, peer, test in _rows():
        found.setdefault(feature, {})[peer] = test in passed
    peers = (*ON_OURS, *ON_APACHES)
    lines = [f"| | {' | '.join(peers)} |", f"|---{'|---' * len(peers)}|"]
    for feature, cells in found.items():
        texts = ["" if peer not in cells else "yes" if cells[peer] else "**no**" for peer in peers]
        lines.append(f"| {feature} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def all_pass() -> str:
    """The table when every test passes."""
    return table({test for *_, test in _rows()})
