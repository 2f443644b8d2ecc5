"""``aiorocket fuzz`` finds what is planted, makes it small, and finds nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import json
import os
from mmap import mmap
from typing import Any

import pytest

from aiorocket.errors import ConfigError
from aiorocket.fuzz import Compared, Finding, Fuzzing, Report, Rule, Sample, compare, fuzz, replay, role_of, shrink
from aiorocket.fuzz.differences import matches
from aiorocket.fuzz.differential import _found, _shows_soon, _topic, apaches_rules
from aiorocket.fuzz.neighbour import Neighbour
from aiorocket.fuzz.wire import Wire
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import JSON, LANGUAGE_JAVA, RemotingCommand, encode
from aiorocket_protocol.fuzzing import BROKEN, CODES, FORMS, ODD, Drawn
from tests.fuzz.servers import Answers, Kept, serve

FEW = (30, 31, 105)


async def run(address: str, **changes: Any) -> Report:
    given = {"frames": 1000, "codes": FEW, "connections": 2, **changes}
    return await fuzz(Fuzzing(address, "nameserver", 1_700_000_000_000, **given))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    async def main(_sim: Simulation) -> Report:
        address, server = await serve(Kept())
        assert await role_of(address) == "nameserver"
        report = await run(address)
        server.close()
        return report

    report = simulate(main)
    assert report.found == [] and report.frames >= 1000 and report.rounds > 0 and not report.interrupted
    summary = report.coverage.summary()
    assert summary["code_and_codec"] == [9, 9]
    assert set(summary["forms"]) == {"legal", "odd", "broken"} and summary["answers"]["3"] > 500


@pytest.mark.parametrize(
    ("answers", "kind", "said"),
    [
        (lambda _, asked: [RemotingCommand(4711, asked.opaque, 1)], "answer", "4711"),
        (lambda well, asked: [RemotingCommand(0, asked.opaque + 100_000, 1), *well(asked)], "answer", "nothing that"),
        (lambda well, asked: [*well(asked), b"\xff" * 8], "answer", "cannot be read"),
        (lambda _, asked: [RemotingCommand(1, asked.opaque, 1, remark="KeyError: 'x'")], "internal", "KeyError"),
        (lambda *_: [], "hang", "no answer in 10 s"),
    ],
    ids=["code", "unasked", "unreadable", "internal", "hang"],
)
def test_what_is_planted_is_found_and_made_small(answers: Any, kind: str, said: str) -> None:
    async def main(_sim: Simulation) -> None:
        well = Kept()

        def planted(request: RemotingCommand) -> list[RemotingCommand | bytes]:
            wrong = request.code == 31 and request.ext_fields().get("queueId") == "-1"
            found: list[RemotingCommand | bytes] = answers(well, request) if wrong else well(request)
            return found

        address, server = await serve(planted)
        report = await run(address, connections=1, frames=2000)
        sample = next(sample for sample in report.found if sample.finding.kind == kind)
        assert said in sample.finding.detail
        assert sample.shrunk and len(sample.frames) == 1 and sample.frames[0].code == 31
        again = Sample.from_text(sample.to_text())
        assert again.finding == sample.finding and again.frames == list(sample.frames)
        assert any(each.kind == kind for each in await replay(address, again.frames))
        server.close()
        assert (await replay(address, again.frames))[0].kind == "crash"  # nobody listens any more

    simulate(main)


def test_a_finding_that_was_made_small_is_of_the_request_that_is_left() -> None:
    async def main(_sim: Simulation) -> Sample:
        address, server = await serve(lambda asked: [RemotingCommand(4711, asked.opaque, 1)])
        both = [
            Drawn(31, JSON, form, part, opaque, True, encode(RemotingCommand(31, opaque), JSON))
            for form, part, opaque in ((BROKEN, "body", 1), (ODD, "queueId", 2))
        ]
        small = await shrink(Sample(address, Finding("answer", "of the first", 31, BROKEN, "body"), both))
        server.close()
        return small

    small = simulate(main)
    (left,) = small.frames
    assert (small.finding.form, small.finding.part) == (left.form, left.part) == (ODD, "queueId")


def test_a_few_frames_are_no_more_because_many_connections_are_allowed() -> None:
    async def main(_sim: Simulation) -> Report:
        address, server = await serve(Kept())
        report = await run(address, frames=120, connections=16)
        server.close()
        return report

    assert 120 <= simulate(main).frames < 170


def test_a_machine_that_stands_still_once_is_no_finding() -> None:
    async def main(sim: Simulation) -> Report:
        count, until = 0, 0.0

        def late(_request: RemotingCommand) -> float:
            nonlocal count, until
            count += 1
            if count == 300:
                until = sim.loop.time() + 15
            return max(0.0, until - sim.loop.time())

        address, server = await serve(Kept(), late=late)
        report = await run(address, frames=3000)
        server.close()
        return report

    report = simulate(main)
    assert report.found == [], [str(sample.finding) for sample in report.found]
    assert len(report.stalls) == 2 and report.stalls[0].startswith("answered after 1"), report.stalls
    assert report.slowest > 10


def test_what_is_late_again_is_a_finding() -> None:
    async def main(_sim: Simulation) -> Report:
        address, server = await serve(
            Kept(),
            late=lambda request: 10.5 if (request.code, request.ext_fields().get("queueId")) == (31, "-1") else 0,
        )
        report = await run(address, connections=1, frames=400, codes=(31,))
        server.close()
        return report

    report = simulate(main)
    (sample,) = report.found
    assert sample.finding.kind == "late" and sample.shrunk and len(sample.frames) == 1 and report.stalls == []


def test_a_neighbour_that_waits_too_long_again_and_again_is_a_finding() -> None:
    async def main(_sim: Simulation) -> None:
        address, server = await serve(Kept(), late=lambda request: 10.5 * (request.code == 101))
        neighbour = Neighbour(address, "nameserver", 10.0)
        await neighbour.run()
        assert neighbour.finding is not None and neighbour.finding.detail.startswith("rounds 0 and 1 took 10.5")
        server.close()

    simulate(main)


def test_a_neighbour_that_loses_something_is_a_finding() -> None:
    def forgets(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [RemotingCommand(22, request.opaque, 1)]

    assert [sample.finding.kind for sample in simulate(lambda _sim: served(forgets)).found] == ["neighbour"]


def test_two_runs_at_one_name_server_do_not_disturb_each_other() -> None:
    async def main(_sim: Simulation) -> list[Report]:
        values: dict[str | None, str | None] = {}

        def keeps(asked: RemotingCommand) -> list[RemotingCommand | bytes]:
            ext = asked.ext or {}
            if asked.code == 100:
                values[ext.get("key")] = ext.get("value")
            return [RemotingCommand(0, asked.opaque, 1, ext={"value": values.get(ext.get("key"))})]

        async def begun(seed: int) -> Report:
            await asyncio.sleep(0.35 * seed)
            return await run(address, seed=seed, seconds=3, frames=10_000)

        address, server = await serve(keeps, late=lambda _: 0.1)
        reports = await asyncio.gather(begun(0), begun(1))
        server.close()
        return reports

    assert [report.found for report in simulate(main)] == [[], []]


def test_an_answer_to_the_neighbour_without_its_message_is_a_finding() -> None:
    """It ended the healthy client, of whom was said then: 0 rounds."""

    async def main(_sim: Simulation) -> Report:
        address, server = await serve(
            lambda asked: [RemotingCommand(0, asked.opaque, 1, ext={"queueOffset": "0"} if asked.code == 310 else None)]
        )
        report = await fuzz(Fuzzing(address, "broker", 1_700_000_000_000, frames=10, codes=FEW))
        server.close()
        return report

    report = simulate(main)
    assert [sample.finding.kind for sample in report.found] == ["neighbour"] and report.rounds == 1
    assert report.found[0].finding.detail == "offset 0 holds [], not b'fuzz-neighbour 0'"


@pytest.mark.parametrize("code", [2, 19], ids=["busy", "not found yet"])
def test_a_server_that_needs_a_while_disturbs_nobody(code: int) -> None:
    well, busy = Kept(), [True, True, True]

    def answers(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        is_busy = request.code == 101 and busy and busy.pop()
        return [RemotingCommand(code, request.opaque, 1)] if is_busy else well(request)

    assert simulate(lambda _sim: served(answers)).found == []


async def served(answers: Answers) -> Report:
    address, server = await serve(answers)
    report = await run(address)
    server.close()
    return report


class _Ended(asyncio.Transport):
    """Refuses to write behind its end, as transports do."""

    ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended

    def write_eof(self) -> None:
        self.ended = True

    def abort(self) -> None:
        pass


def test_a_question_that_comes_after_the_end_of_what_is_sent_is_not_answered() -> None:
    async def main(_sim: Simulation) -> None:
        wire = Wire()
        wire.connection_made(_Ended())
        sent = asyncio.ensure_future(wire.exchange([Drawn(30, 0, BROKEN, "frame", 1, None, b"x")], 5.0))
        await asyncio.sleep(0.1)
        wire.data_received(encode(RemotingCommand(307, 5), JSON))
        assert not await sent

    simulate(main)


def test_a_connection_that_has_ended_is_not_written_to() -> None:
    async def main(_sim: Simulation) -> None:
        wire, transport = Wire(), _Ended()
        wire.connection_made(transport)
        wire.connection_lost(None)
        transport.ended = True
        drawn = Drawn(30, 0, BROKEN, "body", 1, True, b"x")
        assert await wire.ask(drawn, 5.0) is None and not await wire.exchange([drawn], 5.0)

    simulate(main)


def test_two_servers_that_differ() -> None:
    def other(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [RemotingCommand(17 if request.code == 105 else 3, request.opaque, 1)]

    async def main(sim: Simulation) -> Any:
        (one, first), (two, second) = await serve(Kept()), await serve(other, 9877)
        compared = await compare((one, two), "nameserver", now=1, requests=200, codes=(30, 105),
                                 loop_time=sim.loop.time)  # fmt: skip
        first.close()
        second.close()
        return compared

    compared = simulate(main)
    assert compared.requests >= 200
    assert {(case.split()[0], what) for case, what in compared.unknown} == {("105", "code 3/17")}


def test_a_comparison_goes_on_where_another_ended() -> None:
    def other(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        asked.append(request.ext_fields().get("topic") or "")
        return [RemotingCommand(17, request.opaque, 1)]

    async def main(sim: Simulation) -> None:
        (one, first), (two, second) = await serve(Kept()), await serve(other, 9877)
        kept: list[str] = []
        known = [Rule((), ["105 *"], ["code 3/17"], "so it is")]

        async def run(requests: int, before: str | None = None) -> Compared:
            return await compare((one, two), "nameserver", now=1, requests=requests, codes=(105,), rules=known,
                                 connections=3, before=before, loop_time=sim.loop.time,
                                 progress=lambda found: kept.append(found.to_text()))  # fmt: skip

        half = await run(600)
        names = {name for name in asked if "fuzz-0-" in name}
        asked.clear()
        whole = await run(1200, kept[-1])
        first.close()
        second.close()
        assert half.requests >= 600 and whole.requests >= 1200 and whole.sessions > half.sessions >= 3
        assert whole.coverage.sent.total() == whole.requests
        assert whole.known.total() > half.known.total() > 400 and whole.known.keys() >= half.known.keys()
        assert whole.unknown == {} and names.isdisjoint(name for name in asked if "fuzz-0-" in name)
        with pytest.raises(ConfigError, match="not what aiorocket fuzz"):
            half.read("[]")

    asked: list[str] = []
    simulate(main)


def test_a_server_that_is_busy_is_asked_again() -> None:
    busy = [True] * 5

    def other(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [RemotingCommand(2 if busy and busy.pop() else 3, request.opaque, 1)]

    async def main(sim: Simulation) -> Compared:
        (one, first), (two, second) = await serve(Kept()), await serve(other, 9877)
        compared = await compare((one, two), "nameserver", now=1, requests=50, codes=(30,), loop_time=sim.loop.time)
        first.close()
        second.close()
        return compared

    assert simulate(main).differences == {} and busy == []


def test_a_comparison_of_slow_servers_ends_when_its_time_is_over() -> None:
    async def main(sim: Simulation) -> tuple[int, float]:
        (one, first), (two, second) = await serve(Kept(), late=lambda _: 9.0), await serve(Kept(), 9877)
        compared = await compare((one, two), "broker", now=1, codes=(30, 105), connections=8, seconds=60,
                                 loop_time=sim.loop.time)  # fmt: skip
        first.close()
        second.close()
        return compared.requests, sim.loop.time()

    requests, took = simulate(main)
    # Before the first request both are asked who they are; the last one, and one that deletes, are each under way.
    assert requests >= 8 * 6 and 60 < took < 60 + 4 * 10


def test_what_is_not_answered_once_is_asked_again_unless_it_changes_something() -> None:
    asked: list[int] = []

    def late(request: RemotingCommand) -> float:
        asked.append(request.code)
        return 11.0 if request.code != 106 and asked.count(request.code) == 1 else 0.0

    async def main(sim: Simulation) -> Compared:
        (one, first), (two, second) = await serve(Kept(), late=late), await serve(Kept(), 9877)
        compared = await compare((one, two), "nameserver", now=1, requests=40, codes=(30, 105, 103),
                                 loop_time=sim.loop.time)  # fmt: skip
        first.close()
        second.close()
        return compared

    compared = simulate(main)
    assert {(case.split()[0], what) for case, what in compared.differences} == {("103", "code none/3")}
    assert asked.count(30) + asked.count(105) == compared.requests - asked.count(103) + 2


def test_a_server_that_ends_during_a_comparison_is_an_error_of_the_network() -> None:
    async def main(sim: Simulation) -> None:
        asked = 0

        def mortal(request: RemotingCommand) -> list[RemotingCommand | bytes]:
            nonlocal asked
            asked += 1
            if asked == 30:
                second.close()
            return [RemotingCommand(3, request.opaque, 1)] if asked < 30 else [b"\xff" * 8]

        (one, first), (two, second) = await serve(Kept()), await serve(mortal, 9877)
        with pytest.raises(ConnectionError):
            await compare((one, two), "nameserver", now=1, codes=(30,), connections=2, loop_time=sim.loop.time)
        first.close()

    simulate(main)


def test_what_was_stored_is_asked_for_when_it_is_shown() -> None:
    """Some time after its receipt, as at Apache's."""

    def server(shows: int) -> Answers:
        behind = 0

        def answers(request: RemotingCommand) -> list[RemotingCommand | bytes]:
            nonlocal behind
            asked.append(request.code)
            if request.code in (28, 30):
                behind = max(0, behind - 1)
                body = b'{"table":{"dispatchBehindBytes":"%d"}}' % behind
                end: dict[str, str | None] = {"offset": "7" if behind else "8"}
                return [RemotingCommand(0, request.opaque, 1, body=body, ext=end)]
            if request.code == 310:
                behind = shows
                return [RemotingCommand(0, request.opaque, 1, ext=receipt)]
            return [RemotingCommand(19 if request.code == 11 and behind else 0, request.opaque, 1)]

        return answers

    async def main(sim: Simulation) -> Compared:
        (one, first), (two, second) = await serve(server(0)), await serve(server(9), 9877)
        compared = await compare((one, two), "broker", now=1, requests=100, codes=(310, 11), loop_time=sim.loop.time)
        first.close()
        second.close()
        return compared

    receipt: dict[str, str | None]
    for receipt in ({}, {"msgId": "m", "queueId": "0", "queueOffset": "7"}):
        asked: list[int] = []
        compared = simulate(main)
        # Nobody waits for what is not shown soon: of its topic the two are apart.
        assert {case for case, _ in compared.differences if not case.endswith("apart")} == set()
        sends = sum(count for (code, *_), count in compared.coverage.sent.items() if code == 310)
        assert (asked.count(30) > 4 * sends > 4 * asked.count(28)) if receipt else (30 not in asked)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"b": "fuzz-0-1", "f": "12"}, False),
        ({"topic": "fuzz-0-1", "sysFlag": "4"}, False),
        ({"b": "fuzz-0-1", "f": "4", "i": "TRAN_MSG\x01true"}, True),
        ({"b": "fuzz-0-1", "f": "8"}, True),
        ({"b": "fuzz-0-1", "f": "0", "i": "TIMER_DELAY_MS\x01200"}, False),
        ({"b": "fuzz-0-1", "f": "x", "i": "DELAY\x011"}, False),
        ({"b": "TBW102", "f": "12"}, False),
        ({"b": "fuzz-0-1", "m": "false"}, False),
        ({"b": "fuzz-0-1", "m": "true"}, True),
        ({"b": "fuzz-0-1", "i": None}, True),
    ],
)
def test_what_apaches_shows_later_or_never(fields: dict[str, str | None], shown: bool) -> None:
    code = 320 if "m" in fields else 310
    drawn = Drawn(code, JSON, ODD, "", 1, True, encode(RemotingCommand(code, 1, ext=fields), JSON))
    assert _shows_soon(drawn) == shown and _topic(drawn) == (set() if "TBW102" in fields.values() else {b"fuzz-0-1"})


def test_who_answers_late_is_waited_for_when_the_other_left_that_unanswered() -> None:
    def quiet(_: RemotingCommand) -> list[RemotingCommand | bytes]:
        return []

    async def main(sim: Simulation) -> Compared:
        (one, first), (two, second) = await serve(Kept(), late=lambda _: 0.5), await serve(quiet, 9877)
        known = [Rule((), ["30 *"], ["code 3/none"], "so it is")]
        compared = await compare(
            (one, two), "nameserver", now=1, requests=30, codes=(30,), rules=known, loop_time=sim.loop.time
        )
        first.close()
        second.close()
        return compared

    assert {what for _, what in simulate(main).differences} == {"code 3/none"}


def test_a_server_that_hung_up_is_asked_again_once() -> None:
    bad = b"\xff" * 8

    def once(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [bad if times and times.pop() else RemotingCommand(3, request.opaque, 1)]

    async def main(sim: Simulation) -> list[Compared]:
        found = []
        for answers in (once, lambda _: [bad]):
            (one, first), (two, second) = await serve(Kept()), await serve(answers, 9877)
            found.append(
                await compare((one, two), "nameserver", now=1, requests=50, codes=(30,), loop_time=sim.loop.time)
            )
            first.close()
            second.close()
        return found

    times = [True]
    after_one, after_each = simulate(main)
    assert after_one.differences == {} and times == []
    assert {what for _, what in after_each.differences} == {"code 3/none"}


def test_names_of_which_only_one_took_what_it_was_told_are_apart() -> None:
    def other(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [RemotingCommand(17 if request.code == 105 else 3, request.opaque, 1)]

    async def main(sim: Simulation) -> Compared:
        (one, first), (two, second) = await serve(Kept()), await serve(other, 9877)
        compared = await compare(
            (one, two), "nameserver", now=1, requests=400, codes=(100, 105), loop_time=sim.loop.time
        )
        first.close()
        second.close()
        return compared

    cases = {case for case, _ in simulate(main).differences}
    assert {"100 legal", "100 legal apart"} <= cases  # only the first server keeps values
    assert "105 legal" in cases


def test_what_differs_from_apaches_on_purpose_is_known() -> None:
    def javas(request: RemotingCommand) -> list[RemotingCommand | bytes]:
        return [RemotingCommand(0, request.opaque, 1, LANGUAGE_JAVA)]

    async def main(sim: Simulation) -> None:
        (ours, first), (apaches, second) = await serve(Kept()), await serve(javas, 9877)
        for pair, known in (((ours, apaches), {60}), ((apaches, ours), set())):
            compared = await compare(pair, "nameserver", now=1, requests=100, codes=(30, 60), loop_time=sim.loop.time)
            assert {int(case.split()[0]) for case, _ in compared.known} == known
            assert {int(case.split()[0]) for case, _ in compared.unknown} == {30, 60} - known
            assert compared.examples.keys() == compared.differences.keys()
        first.close()
        second.close()

    simulate(main)


def test_every_difference_from_apaches_has_requests_and_a_reason() -> None:
    rules = apaches_rules()
    codes = {str(code) for code in CODES}
    for rule in rules:
        assert rule.cases and rule.what and rule.why and "*" not in rule.what, rule
        assert "code *" not in rule.what or all(case.endswith(" apart") for case in rule.cases), rule
        for case in rule.cases:
            code, _, form = case.partition(" ")
            assert form.split()[0].rstrip("*") in ("", *FORMS), case
            assert code in codes or (code == "*" and form.split()[0] in (ODD, BROKEN)), case
    assert len({rule.why for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    ("case", "what", "allowed"),
    [
        ("105 legal", "code 0/17", False),
        ("105 legal apart", "code 0/17", True),
        ("11 legal", "code 0/19", False),
        ("11 legal apart", "code 0/19", True),
        ("14 legal", "code 22/0", False),
        ("15 legal", "code 29/0", True),
        ("15 legal", "code 17/0", False),
        ("15 legal apart", "code 17/0", True),
        ("18 legal", "code 29/1", False),
        ("18 legal", "code 0/1", False),
        ("18 legal", "code 0/1 twice", True),
        ("33 legal", "code 0/22", False),
        ("200055 legal", "code 0/17", False),
        ("222 legal", "code 26/0", False),
        ("222 legal apart", "code 26/0", True),
        ("317 legal", "-body.totalDiff", False),
        ("317 legal", "-body.consumeStatsList[][].totalDiff", False),
        ("317 legal", "+body.consumeStatsList[][].consumeTps", True),
        ("15 legal apart", "code 17/29", False),
        ("321 legal", "-body.queueData[]", False),
        ("321 legal", "+body.queueData[]", False),
        ("321 legal", "+body.maxQueueIndex", False),
        ("321 legal", "+body.maxQueueIndex nothing there", True),
        ("321 legal apart", "code 0/1", False),
        ("321 legal apart", "code 1/0", False),
        ("321 legal", "code 1/0 nothing there", True),
        ("345 legal", "+body.subscriptionData.topic", False),
        ("310 legal", "code 0/1", False),
        ("310 legal", "code 0/1 NullPointerException", True),
        ("310 legal", "-MSG_REGION", False),
        ("310 legal", "-MSG_REGION of 29", True),
        ("200050 legal", "-popTime", False),
        ("200050 legal", "code 0/210", False),
        ("200050 legal", "code 0/210 too late", True),
        ("12 legal", "code 22/0", False),
        ("28 legal", "-body.table.msgPutTotalTodayNow", False),
    ],
)
def test_what_differs_of_legal_requests_is_seen(case: str, what: str, allowed: bool) -> None:
    assert any(rule.allows(case, what) for rule in apaches_rules()) == allowed


def test_a_queue_of_which_apaches_has_nothing_is_told_from_an_answer_that_lacks_something() -> None:
    empty = RemotingCommand(0, 1, 1, body=b'{"maxQueueIndex":0}')
    theirs = RemotingCommand(0, 1, 1, remark="Index 0 of 0@orders is not exist!")
    assert set(_found(empty, theirs)) == {"+body.maxQueueIndex nothing there", "-body nothing there"}
    assert _found(empty, RemotingCommand(0, 1, 1, body=b"{}")) == ["+body.maxQueueIndex", "-body"]


def test_findings_with_other_numbers_are_one() -> None:
    one, two = (Finding("internal", f"KeyError: {number}", 10) for number in (17, 4))
    assert one.signature == two.signature != Finding("internal", "KeyError: 17", 11).signature


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"schema": 2})])
def test_a_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Sample.from_text(text)


def test_memory_that_is_not_given_back_is_a_finding() -> None:
    async def main(_sim: Simulation) -> list[Report]:
        well, kept = Kept(), list[mmap]()

        def keeps(request: RemotingCommand) -> list[RemotingCommand | bytes]:
            kept.append(mmap(-1, 100_000))  # bytes may be made of what other tests of this process gave back
            kept[-1].write(b"x" * 100_000)
            return well(request)

        reports = []
        for answers in (well, keeps):
            address, server = await serve(answers)
            reports.append(await run(address, frames=500, pid=os.getpid(), growth=16.0))
            server.close()
        return reports

    flat, grown = simulate(main)
    assert flat.found == [] and [sample.finding.kind for sample in grown.found] == ["growth"]
    assert grown.memory is not None and grown.memory[1] - grown.memory[0] > 16


def test_a_star_of_a_rule_stands_for_names_with_line_feeds_too() -> None:
    assert matches(r"-table.\*", "-table.*") and not matches(r"-table.\*", "-table.*.offset")
    assert matches("201 *", "201 -subscriptionGroupTable.a\nb") and not matches("201 *", "202 a\nb")
