"""What a peer can make grow, and how far: one line for each, for brokers, name servers and clients.

Each is far above what Apache's own clusters hold and small enough that all of them together leave a process of some
hundred megabytes. A refusal names its line. Connections, requests in flight and unread bytes are in RemotingConfig,
sizes of the wire in ``aiorocket_protocol.limits``. ``tests/broker/test_limits.py`` reaches every line as a hostile
client would, ``tests/remoting/test_limits.py`` those of RemotingConfig.

What all share one connection cannot use up: of topics, queues, groups, offsets, locks, filter_memory, popped,
transactions and timers it gets no more while it has nine times what is left; of offsets, locks and popped no group does
either. Whoever closes its connection and comes again begins anew, but for what a group has. The other lines are in all
only: administrators set them (attributes, forbidden, modes, users, all_rights, key_values), brokers that may register
here (brokers, routes), they are of one thing, they have their share in another line (members in groups_per_connection;
parked pulls and pops and repetitions in RemotingConfig.max_in_flight), last for some turns of the loop
(pops_under_way), or refuse nobody (deliveries, sent_once). ``tests/broker/test_shares.py`` has one of both for each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from aiorocket.config.remoting import MIB, check_numbers, check_positive

__all__ = ("Limits",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``BrokerConfig.limits``, ``NameServerConfig.limits``, ``ClientConfig.limits``."""

    #: Topics of a broker. Those of retries and dead letters count, but are made above it too: two for a group.
    topics: int = 50_000
    #: Queues of all of them together, made above it as those are. One that has messages takes 1 KiB and a file.
    queues: int = 500_000
    #: Characters of the attributes of all topics, names and values, and of those of all groups as many again: name
    #: servers are told of all topics.
    attributes: int = 2 * MIB
    #: Consumer groups that a broker knows, also those that came into being by being used.
    groups: int = 20_000
    #: Pairs of group and topic that the one may not read the other (353): a list of groups has them in one piece.
    forbidden: int = 2_000
    #: Committed offsets: (group, topic, queue). Of resets a quarter as many (queue, connection) are remembered as told.
    offsets: int = 500_000
    #: Queue locks that are held or remembered.
    locks: int = 200_000
    #: Members of groups: (group, connection), consumers and producers each.
    members: int = 100_000
    #: Groups that one connection may be a member of, as consumer or as producer.
    groups_per_connection: int = 1_000
    #: Topics that one group may subscribe to.
    subscriptions: int = 1_000
    #: Characters of one filter expression, tags or SQL92.
    filter_length: int = 16 * 1024
    #: Tags of one subscription.
    filter_tags: int = 1_000
    #: Bytes that the filters of parked pulls may take, those of heartbeats as many again.
    filter_memory: int = 64 * MIB
    #: Pulls that wait at a broker, in all and of one connection on one queue.
    parked_pulls: int = 200_000
    parked_per_queue: int = 256
    #: Pops that wait at a broker, in all and of one group for one topic.
    parked_pops: int = 100_000
    parked_pops_per_group: int = 1_024
    #: Pops, peeks and notifications whose queues are looked through in turns of the loop.
    pops_under_way: int = 4_096
    #: Messages that are with consumers that popped them.
    popped: int = 500_000
    #: Transactions whose outcome is not known yet.
    transactions: int = 200_000
    #: Pairs of topic and group that a message request mode was set for.
    modes: int = 100_000
    #: Pairs of topic and group whose deliveries are counted; those of further ones are counted for the group alone.
    deliveries: int = 50_000
    #: Characters of a client id.
    client_id: int = 1_024
    #: Timer messages that wait; each takes 56 bytes of memory.
    timers: int = 10_000_000
    #: Messages of idempotent producers that are known, lest a repeated one is stored twice: those of who was quiet
    #: longest are forgotten above it.
    sent_once: int = 65_536
    #: Their sends that wait for an earlier attempt of the same message: a disk that stands still brings them.
    repetitions: int = 10_000
    #: Messages in one batch.
    batch: int = 8_192
    #: Brokers (name and id) of a name server, topics of one of them, with those of retries and dead letters, and both
    #: together.
    brokers: int = 1_000
    broker_topics: int = 100_000
    routes: int = 500_000
    #: Characters of all key-values of a name server.
    key_values: int = 16 * MIB
    #: Users that commands may make at a server with access control, and entries with their addresses, of one of them
    #: and of all: they are saved whole.
    users: int = 10_000
    rights: int = 1_000
    all_rights: int = 100_000
    #: Queues in the route of one topic, as a client believes it.
    route_queues: int = 65_536

    def __post_init__(self) -> None:
        check_numbers(self)
        check_positive(self, *(each.name for each in fields(self)))
