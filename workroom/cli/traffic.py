"""`workroom traffic`: who went where, and why not."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import click
from google.protobuf.json_format import MessageToDict

from workroom.cli.services import EGRESS
from workroom.egress.v1 import egress_pb2 as pb
from workroom.egress.v1 import egress_pb2_grpc as rpc
from workroom.paths import Home
from workroom.rpc.channel import open_channel, translate_errors

_WORDS = {pb.EFFECT_ALLOW: "allowed", pb.EFFECT_ASK: "asked", pb.EFFECT_DENY: "denied"}
_COLOURS = {pb.EFFECT_ALLOW: "green", pb.EFFECT_ASK: "yellow", pb.EFFECT_DENY: "red"}


@click.command()
@click.argument("session", default="")
@click.option("--denied", is_flag=True, help="Only what was not let out.")
@click.option("--dns", is_flag=True, help="DNS queries as well.")
@click.option("--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def traffic(session: str, denied: bool, dns: bool, follow: bool, as_json: bool) -> None:
    """Show what went out of the containers (of SESSION), and what was not let out, and why."""
    wanted = pb.TrafficFilter(session_id=session)
    if denied:
        wanted.effects.extend([pb.EFFECT_DENY, pb.EFFECT_ASK])
    if not dns:
        wanted.kinds.extend([pb.TrafficRecord.KIND_CONNECTION, pb.TrafficRecord.KIND_REQUEST])
    show = _print_json if as_json else _print_line
    asyncio.run(_show(wanted, show, follow=follow))


async def _show(
    wanted: pb.TrafficFilter, show: Callable[[pb.TrafficRecord], None], *, follow: bool
) -> None:
    async with open_channel(EGRESS.address(Home.from_env())) as channel:
        stub = rpc.EgressServiceStub(channel)
        last = 0
        async for record in _listed(stub, wanted):
            last = max(last, record.change)
            show(record)
        if follow:
            request = pb.WatchTrafficRequest(filter=wanted, after_change=last)
            with translate_errors():
                async for answer in stub.WatchTraffic(request):
                    show(answer.record)


async def _listed(
    stub: "rpc.EgressServiceAsyncStub", wanted: pb.TrafficFilter
) -> AsyncIterator[pb.TrafficRecord]:
    token = ""
    while True:
        request = pb.ListTrafficRequest(filter=wanted, page_size=100, page_token=token)
        with translate_errors():
            page = await stub.ListTraffic(request, timeout=30)
        for record in page.records:
            yield record
        token = page.next_page_token
        if not token:
            return


def _print_json(record: pb.TrafficRecord) -> None:
    click.echo(json.dumps(MessageToDict(record), ensure_ascii=False))


def _print_line(record: pb.TrafficRecord) -> None:
    effect = record.decision.effect
    word = click.style(f"{_WORDS.get(effect, '?'):<8}", fg=_COLOURS.get(effect))
    time = record.create_time.ToDatetime().isoformat(timespec="seconds") + "Z"
    click.echo(f"{time}  {word} {_what(record)}  {_why(record)}")


def _what(record: pb.TrafficRecord) -> str:
    if record.kind == pb.TrafficRecord.KIND_DNS_QUERY:
        return f"{record.query_type} {record.host}"
    place = f"{record.host or record.requested_address}:{record.port}"
    if record.kind == pb.TrafficRecord.KIND_REQUEST and record.method:
        return f"{record.method} http://{place}{record.path}"
    return f"{record.protocol} {place}" if record.protocol else place


def _why(record: pb.TrafficRecord) -> str:
    if record.decision.effect != pb.EFFECT_ALLOW:
        return f"{record.decision.reason} ({record.decision.rule})"
    if record.state == pb.TrafficRecord.STATE_OPEN:
        return "open"
    size = f"{record.sent_bytes} B out, {record.received_bytes} B in"
    took = f"{record.duration.ToTimedelta().total_seconds():.2f} s"
    return f"{record.ending}, {size}, {took}"
