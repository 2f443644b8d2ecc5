"""What a broker counts of its consumer groups and pulls, as plain numbers anybody may read."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from aiorocket.config import Limits

__all__ = ("GroupCounters", "SendBack")

#: Groups that are named for each total.
_NAMED = 100


class SendBack(NamedTuple):
    """A message that was stored again because its consumer could not handle it; what ``Broker.on_send_back`` tells.

    ``topic`` is where the message was first sent to, ``destination`` where it goes now (``%RETRY%group`` or
    ``%DLQ%group``), ``reconsume_times`` how often it has failed with this one, ``delay_level`` 0 when it waits for
    nothing. ``message_id`` is the id its producer gave it, or its offset id; ``peer`` the consumer's address.
    """

    group: str
    peer: str
    topic: str
    destination: str
    message_id: str
    origin_message_id: str
    reconsume_times: int
    delay_level: int
    dead: bool


class GroupCounters:
    """Per consumer group, since the broker started. Dead letters are send-backs and retry sends that ended there."""

    def __init__(self, most: int = Limits().deliveries) -> None:
        self._most = most
        self.send_backs: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        #: Commits refused because they carried the epoch of a lock that has another owner since.
        self.stale_commits: Counter[str] = Counter()
        #: (topic, group) → messages in answers to its pulls. No Counter: its first look at a key is a call of Python.
        self.delivered: defaultdict[tuple[str, str], int] = defaultdict(int)
        #: (topic, group) → bytes of their records, while somebody asks for them.
        self.delivered_bytes: defaultdict[tuple[str, str], int] | None = None
        #: Pull requests answered with messages, and without.
        self.gets_found = 0
        self.gets_missed = 0

    def pair(self, topic: str, group: str) -> tuple[str, str]:
        """Where the group's deliveries of ``topic`` are counted; without a topic when too many pairs are known."""
        key = topic, group
        return key if key in self.delivered or len(self.delivered) < self._most else ("", group)

    def report(self) -> dict[str, str]:
        """For GET_BROKER_RUNTIME_INFO: a total, and one entry for each of the groups that have most."""
        table: dict[str, str] = {}
        for name, counts in (
            ("sendBacks", self.send_backs),
            ("deadLetters", self.dead_letters),
            ("staleCommits", self.stale_commits),
        ):
            table[name] = str(counts.total())
            table.update({f"{name}_{group}": str(count) for group, count in sorted(counts.most_common(_NAMED))})
        if len(self.delivered) >= self._most:
            limit = f"the broker's limit deliveries={self._most} is reached"
            table["limit_deliveries"] = f"{limit}: those of further topics are counted for their groups alone"
        return table
