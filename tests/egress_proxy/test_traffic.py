"""The traffic log: what it keeps, how it is read, and that nothing goes out unseen."""

import asyncio
import sqlite3
from datetime import timedelta

import pytest

from egress_proxy.policy import Decision, Effect
from egress_proxy.traffic import Attempt, Ending, Filter, Kind, Owner, TrafficLogUnavailable
from egress_proxy.traffic_log import TrafficLog
from tests.egress_proxy.hellos import real_hello
from tests.egress_proxy.node import Upstream, dial, lookup, node
from workroom.egress.v1 import egress_pb2 as pb
from workroom.errors import InvalidField
from workroom.rpc.channel import translate_errors

ALLOW = Decision(Effect.ALLOW, "rules[0] a", "allowed")
DENY = Decision(Effect.DENY, "default", "not_allowed")


def attempt(number: int = 1, decision: Decision = ALLOW, session: str = "sess_1") -> Attempt:
    owner = Owner("ctr_1", "default", session, 3)
    return Attempt(owner, Kind.CONNECTION, decision, "tls", f"h{number}.test", 443)


@pytest.fixture
async def log(tmp_path):
    async with TrafficLog.opened(tmp_path / "traffic.db") as made:
        yield made


async def ended(log: TrafficLog, number: int) -> None:
    async with asyncio.timeout(5):
        while (await log.page(Filter(), number - 1, 1))[0].duration is None:
            await log.next_change().wait()


async def kept(log: TrafficLog, numbers: list[int]) -> None:
    async with asyncio.timeout(5):
        while [each.id for each in await log.page(Filter(), 0, 10)] != numbers:
            pass


async def test_a_record_is_there_when_it_has_begun_and_says_how_it_ended(log):
    number = await log.begin(attempt())
    (record,) = await log.page(Filter(), 0, 10)
    assert (record.id, record.attempt, record.duration) == (number, attempt(), None)
    log.end(number, Ending("closed", 10, 20, 200))
    await ended(log, number)
    (record,) = await log.page(Filter(), 0, 10)
    assert record.ending == Ending("closed", 10, 20, 200)
    assert record.change == 2


async def test_records_are_filtered_and_paged(log):
    for number in range(6):
        decision = DENY if number % 2 else ALLOW
        await log.note(attempt(number, decision, f"sess_{number % 3}"), Ending("x"))
    assert [each.id for each in await log.page(Filter(session_id="sess_1"), 0, 10)] == [2, 5]
    assert [each.id for each in await log.page(Filter(effects=[Effect.DENY]), 2, 1)] == [4]
    assert await log.page(Filter(kinds=[Kind.REQUEST]), 0, 10) == []
    assert await log.page(Filter(container_id="ctr_2"), 0, 10) == []


async def test_many_at_once_are_all_written(log):
    numbers = await asyncio.gather(*(log.begin(attempt(number)) for number in range(300)))
    assert sorted(numbers) == list(range(1, 301))


async def test_what_was_open_is_over_when_the_proxy_comes_back(tmp_path):
    async with TrafficLog.opened(tmp_path / "traffic.db") as log:
        await log.begin(attempt())
    async with TrafficLog.opened(tmp_path / "traffic.db") as log:
        (record,) = await log.page(Filter(), 0, 10)
        assert record.ending.how == "proxy_stopped"
        assert record.duration is not None


async def test_old_records_go(tmp_path):
    async with TrafficLog.opened(tmp_path / "traffic.db") as log:
        for number in range(5):
            await log.note(attempt(number), Ending("x"))
    async with TrafficLog.opened(tmp_path / "traffic.db", max_records=2) as log:
        await kept(log, [4, 5])
    async with TrafficLog.opened(tmp_path / "traffic.db", retention=timedelta(0)) as log:
        await kept(log, [])


async def test_a_log_that_cannot_be_written_says_so_and_recovers(tmp_path):
    broken = asyncio.Event()
    async with TrafficLog.opened(tmp_path / "traffic.db") as log:
        log.when_broken(broken.set)
        number = await log.begin(attempt())
        other = sqlite3.connect(tmp_path / "traffic.db")
        other.execute("CREATE TRIGGER full BEFORE INSERT ON traffic "
                      "BEGIN SELECT RAISE(ABORT, 'disk is full'); END")  # fmt: skip
        other.commit()
        with pytest.raises(TrafficLogUnavailable, match="disk is full"):
            await log.begin(attempt())
        assert broken.is_set()
        log.end(number, Ending("closed"))
        other.execute("DROP TRIGGER full")
        other.commit()
        other.close()
        await log.begin(attempt())
        await ended(log, number)


async def test_without_a_log_nothing_goes_out():
    async with node() as made, Upstream().serving() as upstream:
        upstream.hold = True
        await made.attach(f"a.test:{upstream.port}")
        client = made.here.socket()
        await asyncio.to_thread(client.connect, ("1.2.3.4", upstream.port))
        await asyncio.to_thread(client.sendall, real_hello("a.test"))
        assert await asyncio.to_thread(client.recv, 100) == b"hello"
        (record,) = await made.records()
        database = made.folder / "db" / "traffic.db"
        other = sqlite3.connect(database)
        other.execute("CREATE TRIGGER full BEFORE INSERT ON traffic "
                      "BEGIN SELECT RAISE(ABORT, 'disk is full'); END")  # fmt: skip
        other.commit()
        with pytest.raises(ConnectionResetError):
            await made.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(client.recv, 100)
        assert (await made.do(lambda: lookup("a.test")))[0] == 2
        assert upstream.received[1:] in ([], [b""])
        other.execute("DROP TRIGGER full")
        other.commit()
        other.close()
        upstream.hold = False
        answer = await made.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
        assert answer == b"hello"
        client.close()


async def test_watchers_see_records_begin_and_end():
    async with node() as made, Upstream().serving() as upstream:
        await made.attach(f"a.test:{upstream.port}")
        watching = made.stub.WatchTraffic(pb.WatchTrafficRequest())
        await made.do(lambda: dial("1.2.3.4", upstream.port, real_hello("a.test")))
        seen = []
        async with asyncio.timeout(5):
            async for answer in watching:
                seen.append(answer.record)
                if answer.record.state == pb.TrafficRecord.STATE_ENDED:
                    break
        assert [each.state for each in seen] == [
            pb.TrafficRecord.STATE_OPEN,
            pb.TrafficRecord.STATE_ENDED,
        ] or len(seen) == 1
        watching.cancel()
        with pytest.raises(InvalidField), translate_errors():
            async for _ in made.stub.WatchTraffic(pb.WatchTrafficRequest(after_change=-1)):
                pass


async def test_a_decision_is_explained_without_traffic():
    async with node() as made:
        await made.attach("*.good.test")

        async def explained(host: str, **more) -> tuple[int, str, str]:
            request = pb.ExplainDecisionRequest(container_id="ctr_1", host=host, **more)
            found = (await made.stub.ExplainDecision(request, timeout=5)).decision
            return found.effect, found.rule, found.reason

        allowed = (pb.EFFECT_ALLOW, "allowed_domains[0] *.good.test", "allowed")
        assert await explained("A.good.test") == allowed
        assert await explained("good.test") == (pb.EFFECT_DENY, "default", "not_allowed")
        assert (await explained("a.good.test", port=22))[0] == pb.EFFECT_DENY
        policy = pb.Policy(access=pb.Policy.ACCESS_ENABLED)
        request = pb.ExplainDecisionRequest(policy=policy, host="169.254.169.254", port=80)
        found = (await made.stub.ExplainDecision(request, timeout=5)).decision
        assert (found.rule, found.reason) == ("address", "address_metadata")
        for host in ("", "http://x", "b\u00fccher.test", "[fe80::1%eth0]"):
            with pytest.raises(InvalidField) as caught, translate_errors():
                await explained(host)
            assert caught.value.field == "host"
        assert made.resolver.asked == []
        assert await made.records() == []
