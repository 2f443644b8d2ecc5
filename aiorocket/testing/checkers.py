"""What must be true of every history, as plain functions: each takes a History and returns the violations it finds.

They know nothing of how the product works. A queue and an offset identify a stored message, a key identifies what a
program sent; a message that is retried is stored again under the same key.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from aiorocket.model import Queue
from aiorocket.testing.history import DISTURBANCES, Event, History

__all__ = (
    "CLUSTER",
    "HistoryError",
    "Violation",
    "attempts_kept",
    "calls_end_in_time",
    "check",
    "commits_never_ahead",
    "commits_never_back",
    "dead_letters_exact",
    "duplicates_explained",
    "leases_exclusive",
    "leases_in_time",
    "no_strays",
    "no_message_lost",
    "nothing_invented",
    "offsets_stable",
    "one_at_a_time",
    "order_per_queue",
    "orderly",
    "sends_end",
    "settled_for_good",
)

#: Ends of a listener's call after which the message need not be delivered again from its queue.
_FINAL = frozenset(("ok", "dead"))


class Violation(NamedTuple):
    """A broken rule, and the events that show it."""

    rule: str
    text: str
    events: tuple[Event, ...] = ()


class HistoryError(AssertionError):
    """A ``history`` breaks rules; ``violations`` has all of them, the text the first of each rule with its events."""

    def __init__(self, history: History, violations: list[Violation]) -> None:
        self.history = history
        self.violations = violations
        first: dict[str, Violation] = {}
        for violation in violations:
            first.setdefault(violation.rule, violation)
        parts = [f"{len(violations)} violations in a history of {len(history)} events; the first of each rule:"]
        for violation in first.values():
            parts.append(f"{violation.rule}: {violation.text}")
            parts.append(history.excerpt(violation.events))
        super().__init__("\n".join(part for part in parts if part))


Checker = Callable[[History], list[Violation]]


def check(history: History, checkers: Iterable[Checker]) -> None:
    """Run ``checkers``; HistoryError when any finds something."""
    violations = [violation for checker in checkers for violation in checker(history)]
    if violations:
        raise HistoryError(history, violations)


# -- sending --


def sends_end(history: History, slack: float = 0.25) -> list[Violation]:
    """Every send ends, one way or the other, within its timeout and ``slack`` seconds, and only once. A send of a host
    that was killed meanwhile owes nothing."""
    open_sends: dict[str, Event] = {}
    found = []
    for event in history:
        if event.what == "sent":
            open_sends[event.key] = event
        elif event.what in ("acknowledged", "rejected", "unknown"):
            sent = open_sends.pop(event.key, None)
            if sent is None:
                found.append(Violation("sends_end", f"{event.key} ended twice, or was never sent", (event,)))
            elif sent.until and event.time > sent.until + slack:
                text = f"{event.key} ended {event.time - sent.until:.3f} s after its timeout"
                found.append(Violation("sends_end", text, (sent, event)))
        elif event.what == "killed":
            open_sends = {key: each for key, each in open_sends.items() if each.host != event.host}
    found += [Violation("sends_end", f"{each.key} never ended", (each,)) for each in open_sends.values()]
    return found


def nothing_invented(history: History) -> list[Violation]:
    """What is delivered was sent, and not only by sends that ended with the certainty that nothing was stored."""
    state: dict[str, Event] = {}
    found = []
    for event in history:
        if event.what in ("sent", "acknowledged", "rejected", "unknown"):
            state[event.key] = event
    for event in history.of("delivered"):
        last = state.get(event.key)
        if last is None:
            found.append(Violation("nothing_invented", f"{event.key} was delivered and never sent", (event,)))
        elif last.what == "rejected":
            text = f"{event.key} was delivered although its send said that no broker has it"
            found.append(Violation("nothing_invented", text, (last, event)))
    return found


def offsets_stable(history: History) -> list[Violation]:
    """A queue's offset belongs to one message for ever: what was acknowledged there is what is delivered there."""
    owner: dict[tuple[Queue, int], Event] = {}
    found = []
    for event in history.of("acknowledged", "delivered"):
        if event.queue is None or event.offset < 0:
            continue
        first = owner.setdefault((event.queue, event.offset), event)
        if first.key != event.key:
            text = f"{first.key} and {event.key} are both at offset {event.offset} of {event.queue}"
            found.append(Violation("offsets_stable", text, (first, event)))
    return found


# -- delivery --


def no_message_lost(history: History) -> list[Violation]:
    """Every acknowledged message was finished by each group of its topic, or is among its dead letters. For
    histories that end after everything had the time to be consumed, with groups that start at the first message."""
    groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
    done: set[tuple[str, str]] = set()
    for event in history:
        if event.what == "joined":
            groups[event.key][event.group] = None
        elif event.what == "dead" or (event.what == "finished" and event.outcome == "ok"):
            done.add((event.group, event.key))
    found = []
    for event in history.of("acknowledged"):
        for group in groups[event.queue.topic if event.queue is not None else ""]:
            if (group, event.key) not in done:
                story = tuple(each for each in history if each.key == event.key)
                text = f"{event.key} was acknowledged and group {group} never finished it"
                found.append(Violation("no_message_lost", text, story))
    return found


def order_per_queue(history: History) -> list[Violation]:
    """In each queue a group sees messages for the first time in the order of their offsets. Repeats may come at any
    place: whoever takes a queue over begins at the committed position."""
    furthest: dict[tuple[str, Queue], Event] = {}
    seen: set[tuple[str, Queue, int]] = set()
    found = []
    for event in history.of("delivered"):
        if event.queue is None or (event.group, event.queue, event.offset) in seen:
            continue
        seen.add((event.group, event.queue, event.offset))
        last = furthest.get((event.group, event.queue))
        if last is not None and last.offset > event.offset:
            text = f"offset {event.offset} of {event.queue} comes to group {event.group} after offset {last.offset}"
            found.append(Violation("order_per_queue", text, (last, event)))
        else:
            furthest[event.group, event.queue] = event
    return found


def orderly(
    history: History, group: str, by: Literal["queue", "shard"] = "queue", max_attempts: int | None = None
) -> list[Violation]:
    """For orderly listeners: nobody is given a message before the one in front of it, in its queue or of its sharding
    key, has ended for good at least once: with success, as a dead letter, or after ``max_attempts``."""
    shards = {event.key: event.shard for event in history.of("sent")}
    sequences: defaultdict[tuple[Queue, str], dict[int, str]] = defaultdict(dict)
    for event in history.of("acknowledged", "delivered"):
        if event.queue is not None and event.offset >= 0 and (event.what == "acknowledged" or event.group == group):
            shard = shards.get(event.key, "") if by == "shard" else ""
            sequences[event.queue, shard][event.offset] = event.key
    # By place, not by key: a send that was repeated after a time-out can be stored twice.
    in_front: dict[tuple[Queue, int], int] = {}
    for (queue, shard), sequence in sequences.items():
        if by == "queue" or shard:
            offsets = sorted(sequence)
            in_front.update({(queue, offset): last for last, offset in pairwise(offsets)})
    ended: set[tuple[Queue, int]] = set()
    last_of: dict[tuple[Queue, int], Event] = {}
    found = []
    for event in history.of("delivered", "finished"):
        if event.group != group or event.queue is None:
            continue
        place = (event.queue, event.offset)
        if event.what == "finished":
            last_try = max_attempts is not None and event.attempt >= max_attempts and event.outcome == "retry"
            if event.outcome in _FINAL or last_try:
                ended.add(place)
        elif place in in_front and (front := (event.queue, in_front[place])) not in ended:
            text = f"{event.key} was delivered before offset {front[1]} of its queue, which lies in front, had ended"
            found.append(Violation("orderly", text, (last_of[front], event) if front in last_of else (event,)))
        last_of[place] = event
    return found


def one_at_a_time(history: History, group: str) -> list[Violation]:
    """For orderly listeners: a queue has at most one listener's call at a time. A killed host's calls end with it."""
    running: dict[Queue, Event] = {}
    found = []
    for event in history:
        if event.what == "killed":
            running = {queue: each for queue, each in running.items() if each.host != event.host}
        if event.group != group or event.queue is None:
            continue
        if event.what == "delivered":
            other = running.get(event.queue)
            if other is not None:
                text = f"{event.key} was delivered while {other.key} of the same queue was with a listener"
                found.append(Violation("one_at_a_time", text, (other, event)))
            running[event.queue] = event
        elif event.what == "finished":
            delivered = running.get(event.queue)
            if delivered is not None and delivered.host == event.host and delivered.offset == event.offset:
                del running[event.queue]
    return found


def duplicates_explained(history: History, grace: float = 180.0) -> list[Violation]:
    """A stored message is delivered again from its queue as the same attempt only after a fault or a change of the
    group, no longer than ``grace`` seconds before its first delivery (a broker misses a silent member after 120 s, the
    next rebalance is 20 s later). A history that has these more often cannot break this: give it less ``grace`` where
    nobody has to be missed first. Of members that each read everything, give the history of one."""
    times = sorted(event.time for event in history if event.what in DISTURBANCES)
    last: dict[tuple[str, Queue, int, int], Event] = {}
    found = []
    for event in history.of("delivered"):
        if event.queue is None:
            continue
        place = (event.group, event.queue, event.offset, event.attempt)
        earlier = last.get(place)
        if earlier is not None:
            at = bisect_left(times, earlier.time - grace)
            if at == len(times) or times[at] > event.time:
                text = f"{event.key} was delivered twice and nothing had happened"
                found.append(Violation("duplicates_explained", text, (earlier, event)))
        last[place] = event
    return found


def commits_never_ahead(history: History) -> list[Violation]:
    """No commit passes a message whose listener has not ended. For groups that start at the first message."""
    stored: defaultdict[Queue, set[int]] = defaultdict(set)
    for event in history.of("acknowledged", "delivered"):
        if event.queue is not None and event.offset >= 0:
            stored[event.queue].add(event.offset)
    offsets = {queue: sorted(known) for queue, known in stored.items()}
    finished: defaultdict[tuple[str, Queue], set[int]] = defaultdict(set)
    position: defaultdict[tuple[str, Queue], int] = defaultdict(int)
    found = []
    for event in history.of("finished", "committed"):
        queue = event.queue
        if queue is None or queue not in offsets:
            continue
        place = (event.group, queue)
        if event.what == "finished":
            if event.outcome != "interrupted":
                finished[place].add(event.offset)
            continue
        known, done, at = offsets[queue], finished[place], position[place]
        while at < len(known) and known[at] in done:
            at += 1
        position[place] = at
        if at < len(known) and known[at] < event.offset:
            text = f"group {event.group} committed {event.offset} of {queue} while offset {known[at]} was not finished"
            about = [each for each in history if each.queue == queue and each.offset == known[at]]
            found.append(Violation("commits_never_ahead", text, (*about, event)))
    return found


def dead_letters_exact(history: History, group: str, max_attempts: int) -> list[Violation]:
    """The dead letters are exactly the messages whose last attempt failed or whose listener said so."""
    exhausted: dict[str, Event] = {}
    for event in history.of("finished"):
        if event.group == group and (
            event.outcome == "dead" or (event.outcome == "retry" and event.attempt >= max_attempts)
        ):
            exhausted[event.key] = event
    dead = {event.key: event for event in history.of("dead") if event.group == group}
    found = [
        Violation("dead_letters_exact", f"{key} used up its attempts and is no dead letter", (event,))
        for key, event in exhausted.items()
        if key not in dead
    ]
    found += [
        Violation("dead_letters_exact", f"{key} is a dead letter and had attempts left", (event,))
        for key, event in dead.items()
        if key not in exhausted
    ]
    return found


def attempts_kept(
    history: History, group: str, max_attempts: int, troubled: Iterable[tuple[float, float]] = (), tail: float = 30.0
) -> list[Violation]:
    """For listeners that are not orderly. Nothing is stored for more than ``max_attempts``. What is delivered as a
    later attempt than it was stored for is a message that could not be sent back: its attempt before failed in the same
    process, and at some moment between the broker was out of reach. ``troubled`` are the times, from and until, at
    which it may be; whoever looks for its route afterwards may need ``tail`` seconds more."""
    stored: dict[tuple[Queue | None, int], int] = {}
    failed: defaultdict[str, dict[tuple[Queue | None, int, int], float]] = defaultdict(dict)
    found = []
    for event in history.of("joined", "delivered", "finished"):
        place = (event.queue, event.offset)
        if event.what == "joined":
            failed[event.host].clear()
        elif event.group != group:
            continue
        elif event.what == "finished":
            if event.outcome in ("retry", "dead"):
                failed[event.host][*place, event.attempt] = event.time
        elif event.attempt <= stored.setdefault(place, event.attempt):
            stored[place] = event.attempt
            if event.attempt > max_attempts:
                text = f"{event.key} was stored for attempt {event.attempt} of {max_attempts}"
                found.append(Violation("attempts_kept", text, (event,)))
        else:
            text = f"{event.key} was delivered as attempt {event.attempt}, stored for {stored[place]}, and"
            since = failed[event.host].get((*place, event.attempt - 1))
            if since is None:
                found.append(Violation("attempts_kept", f"{text} had not failed there before", (event,)))
            elif not any(begin <= event.time and since <= end + tail for begin, end in troubled):
                found.append(Violation("attempts_kept", f"{text} nothing had kept it from being sent back", (event,)))
    return found


def settled_for_good(history: History, since: float) -> list[Violation]:
    """Nothing is delivered after ``since``, when everything had been consumed for long enough to be on the disk: for
    histories in which a broker dies then."""
    return [
        Violation("settled_for_good", f"{event.key} was delivered again long after it was consumed", (event,))
        for event in history.of("delivered")
        if event.time > since
    ]


def no_strays(history: History) -> list[Violation]:
    """A listener is given nothing of a queue that its member has given up."""
    text = "{} was given to a listener although its queue is given up"
    return [Violation("no_strays", text.format(event.key), (event,)) for event in history.of("stray")]


# -- locks --


def _with_grants(
    history: History, group: str, what: Literal["delivered", "finished"]
) -> Iterator[tuple[Event, Event | None]]:
    """These events of the group, each with the last grant of its queue to its host before it."""
    granted: dict[tuple[str, Queue], Event] = {}
    for event in history.of("granted", what):
        if event.group != group or event.queue is None:
            continue
        if event.what == "granted":
            granted[event.key.partition("@")[0], event.queue] = event
        else:
            yield event, granted.get((event.host, event.queue))


def leases_in_time(history: History, group: str, validity: float = 30.0) -> list[Violation]:
    """For orderly listeners: a call begins within ``validity`` seconds after the broker last granted the queue to its
    client; the client's request was before that. Hosts run one client each."""
    found = []
    for event, last in _with_grants(history, group, "delivered"):
        if last is None or event.time > last.time + validity:
            text = f"{event.key} was given to a listener longer than {validity:g} s after its queue was last granted"
            found.append(Violation("leases_in_time", text, (last, event) if last is not None else (event,)))
    return found


def calls_end_in_time(history: History, group: str, validity: float = 30.0, slack: float = 0.5) -> list[Violation]:
    """For orderly listeners that can be cancelled: a call ends within ``validity`` and ``slack`` seconds after the
    broker last granted the queue to its client before that. Not for processes that are stopped."""
    found = []
    for event, last in _with_grants(history, group, "finished"):
        if last is not None and event.time > last.time + validity + slack:
            text = f"{event.key} was with a listener {event.time - last.time:.1f} s after its queue was last granted"
            found.append(Violation("calls_end_in_time", text, (last, event)))
    return found


def commits_never_back(history: History, group: str) -> list[Violation]:
    """For orderly listeners without resets: a position never goes back, because who has lost a queue commits nothing.
    Not over a broker that died, which may forget the last seconds."""
    furthest: dict[Queue, Event] = {}
    found = []
    for event in history.of("committed", "killed"):
        if event.what == "killed":
            furthest.clear()
        elif event.group == group and event.queue is not None:
            last = furthest.get(event.queue)
            if last is not None and event.offset < last.offset:
                text = f"the position of {event.queue} went back from {last.offset} to {event.offset}"
                found.append(Violation("commits_never_back", text, (last, event)))
            furthest[event.queue] = event
    return found


def leases_exclusive(history: History) -> list[Violation]:
    """At no instant two clients hold a valid lease of one queue. That a client died is no excuse: nobody can
    know it."""
    holders: dict[tuple[str, Queue], Event] = {}
    found = []
    for event in history.of("granted", "released"):
        if event.queue is None:
            continue
        place = (event.group, event.queue)
        holder = holders.get(place)
        # `key` is the client's id: one host can run several clients.
        if event.what == "released":
            if holder is not None and holder.key == event.key:
                del holders[place]
            continue
        if holder is not None and holder.key != event.key and event.time < holder.until:
            text = f"{event.queue} was granted to {event.key} while the lease of {holder.key} was valid"
            found.append(Violation("leases_exclusive", text, (holder, event)))
        holders[place] = event
    return found


#: What holds for every cluster whatever happens to it.
CLUSTER: tuple[Checker, ...] = (
    sends_end,
    nothing_invented,
    offsets_stable,
    no_message_lost,
    order_per_queue,
    duplicates_explained,
    commits_never_ahead,
    leases_exclusive,
)
