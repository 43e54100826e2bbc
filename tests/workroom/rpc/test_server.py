import asyncio
import json
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.workroom.rpc.echo import SERVICE, Caller, Echo, echoing, eventually, text
from workroom.errors import Draining, RemoteError
from workroom.rpc.auth import token_verifier
from workroom.rpc.channel import open_channel, translate_errors
from workroom.rpc.drain import Drain
from workroom.rpc.limits import Keepalive
from workroom.rpc.listeners import BindFailed, InsecureListener
from workroom.rpc.server import Listener, ServerCrashed, serving
from workroom.rpc.sockets import AddressInUse
from workroom.rpc.tls import ServerTls
from workroom.rpc.watchdog import watching

Status = health_pb2.HealthCheckResponse


async def returning(request, context):
    return request


def keyed(address="127.0.0.1:0"):
    return Listener(address, verifier=token_verifier("the-token"))


async def health(channel, service=""):
    request = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)).status


async def test_tcp_and_socket_serve_the_same(tmp_path):
    listeners = [keyed(), keyed("[::1]:0"), Listener(f"unix:{tmp_path}/run/s.sock")]
    echo = Echo(unary_unary=returning)
    async with serving([echo.register], listeners, services=[SERVICE]) as server:
        assert len(server.addresses) == 3
        assert not server.addresses[0].endswith(":0")
        for address in server.addresses:
            async with open_channel(address, key="the-token") as channel:
                assert (await Caller(channel).unary_unary(text("a"), timeout=5)).value == "a"
                assert await health(channel, SERVICE) == Status.SERVING
                assert await health(channel) == Status.SERVING


async def test_health_of_an_unknown_service_is_not_found(tmp_path):
    async with echoing(tmp_path) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(caller.channel, "nope")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        stub = health_pb2_grpc.HealthStub(caller.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="nope"), timeout=5)
        assert (await watch.read()).status == Status.SERVICE_UNKNOWN
        watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_tells_services_and_files(tmp_path, version):
    listener = Listener(f"unix:{tmp_path}/run/s.sock")
    async with serving([], listener, services=["grpc.health.v1.Health"]) as server:
        async with open_channel(server.address) as channel:
            call: Any = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )(timeout=5)
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            listed = await call.read()
            names = {service.name for service in listed.list_services_response.service}
            assert "grpc.health.v1.Health" in names
            await call.write(
                reflection_pb2.ServerReflectionRequest(
                    file_containing_symbol="grpc.health.v1.Health.Watch"
                )
            )
            found = await call.read()
            assert b"HealthCheckRequest" in found.file_descriptor_response.file_descriptor_proto[0]
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("address", ["127.0.0.1:0", "0.0.0.0:7410", "localhost:0", "[::]:0"])
@pytest.mark.parametrize("tls", [None, ServerTls(Path("cert.pem"), Path("key.pem"))])
async def test_tcp_without_token_or_mutual_tls_is_refused(address, tls):
    with pytest.raises(InsecureListener, match="without a token or mutual TLS"):
        async with serving([], Listener(address, tls=tls), services=[]):
            pass


async def test_refused_listener_leaves_nothing_of_the_others(tmp_path):
    path = tmp_path / "run" / "s.sock"
    listeners = [Listener(f"unix:{path}"), keyed("192.0.2.1:1")]
    with pytest.raises(BindFailed, match=r"192\.0\.2\.1:1"):
        async with serving([], listeners, services=[]):
            pass
    assert not list(path.parent.iterdir())


async def test_second_server_on_a_port_is_refused(tmp_path):
    async with serving([], keyed(), services=[]) as server:
        with pytest.raises(AddressInUse, match=server.address):
            async with serving([], keyed(server.address), services=[]):
                pass


async def test_body_exception_comes_out_as_it_is(tmp_path):
    with pytest.raises(KeyError, match="own"):
        async with echoing(tmp_path):
            raise KeyError("own")


async def test_crashed_task_beside_the_server_stops_it(tmp_path):
    path = tmp_path / "run" / "s.sock"

    async def crash():
        await asyncio.sleep(0)
        raise KeyError("crashed")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crash())
            async with serving([], Listener(f"unix:{path}"), services=[]):
                await asyncio.Event().wait()
    assert isinstance(caught.value.exceptions[0], KeyError)
    assert not path.exists()


async def test_server_that_ends_by_itself_surfaces(tmp_path):
    servers: list[grpc.aio.Server] = []
    listener = Listener(f"unix:{tmp_path}/run/s.sock")
    with pytest.raises(ExceptionGroup) as caught:
        async with serving([servers.append], listener, services=[]):
            await servers[0].stop(None)
            await asyncio.Event().wait()
    assert isinstance(caught.value.exceptions[0], ServerCrashed)


async def test_message_limit_is_4_mib_and_can_be_set(tmp_path):
    big = text("x" * (5 * 1024 * 1024))
    async with echoing(tmp_path / "a", unary_unary=returning) as caller:
        with pytest.raises(RemoteError) as caught, translate_errors():
            await caller.unary_unary(big, timeout=5)
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await caller.unary_unary(text("x" * (4 * 1024 * 1024 - 8)), timeout=5)
    larger = {"message_bytes": 8 * 1024 * 1024}
    async with echoing(tmp_path / "b", unary_unary=returning, channel=larger, **larger) as caller:
        assert (await caller.unary_unary(big, timeout=5)) == big


async def test_burst_of_calls_loses_none(tmp_path):
    async with echoing(tmp_path, unary_unary=returning) as caller:
        calls = [caller.unary_unary(text(str(number)), timeout=20) for number in range(2500)]
        answers = await asyncio.gather(*calls)
    assert [answer.value for answer in answers] == [str(number) for number in range(2500)]


async def test_idle_connection_is_not_sent_away_for_its_pings(tmp_path, capfd):
    fast = Keepalive(interval=timedelta(milliseconds=50), timeout=timedelta(seconds=5))
    messages: asyncio.Queue[Any] = asyncio.Queue(1)

    async def behaviour(request, context):
        yield text("first")
        yield await messages.get()

    async with echoing(
        tmp_path, unary_stream=behaviour, keepalive=fast, channel={"keepalive": fast}
    ) as caller:
        call = caller.unary_stream(text("x"), timeout=20)
        await call.read()
        channel_states = []
        with pytest.raises(TimeoutError):  # forty pings long, nothing may happen
            async with asyncio.timeout(2):
                await caller.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
                channel_states.append(caller.channel.get_state())
        messages.put_nowait(text("last"))
        assert (await call.read()).value == "last"
        assert not channel_states
    assert "too_many_pings" not in capfd.readouterr().err


async def test_drain_tells_health_ends_streams_and_lets_calls_finish(tmp_path, logged):
    drain, release, begun = Drain(), asyncio.Event(), asyncio.Event()
    channel = open_channel(f"unix:{tmp_path}/run/echo.sock")

    async def slow(request, context):
        begun.set()
        await release.wait()
        return text("finished")

    async def endless(request, context):
        yield text("first")
        async with drain.interrupting():
            await asyncio.Event().wait()

    async def drained_calls():
        caller = Caller(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=10
        )
        assert (await watch.read()).status == Status.SERVING
        stream = caller.unary_stream(text("x"), timeout=10)
        assert (await stream.read()).value == "first"
        call = caller.unary_unary(text("x"), timeout=10)
        await begun.wait()
        opened.set()
        assert (await watch.read()).status == Status.NOT_SERVING
        with pytest.raises(Draining), translate_errors():
            await watch.read()
        with pytest.raises(Draining), translate_errors():
            await stream.read()
        release.set()
        assert (await call).value == "finished"

    opened = asyncio.Event()
    async with channel, asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        async with echoing(tmp_path, unary_unary=slow, unary_stream=endless, drain=drain):
            tasks.create_task(drained_calls())
            await opened.wait()
    codes = {line["method"].rsplit("/")[-1]: line["code"] for line in logged.of("call finished")}
    assert codes == {"UnaryUnary": "OK", "UnaryStream": "UNAVAILABLE", "Watch": "UNAVAILABLE"}
    assert logged.of("stopped")


@pytest.mark.parametrize("style", ["yield", "write"])
async def test_drain_ends_a_stream_whose_client_does_not_read(tmp_path, logged, style):
    drain = Drain()

    async def yielding(request, context):
        async with drain.interrupting():
            while True:
                yield text("x" * 1_000_000)

    async def writing(request, context):
        async with drain.interrupting():
            while True:
                await context.write(text("x" * 1_000_000))

    behaviour = yielding if style == "yield" else writing
    channel = open_channel(f"unix:{tmp_path}/run/echo.sock")
    async with channel, asyncio.timeout(10):
        async with echoing(
            tmp_path, unary_stream=behaviour, drain=drain, grace=timedelta(seconds=0.3)
        ):
            call = Caller(channel).unary_stream(text("x"))
            await call.read()
    (line,) = logged.of("call finished")
    assert line["code"] == "UNAVAILABLE"
    assert logged.of("stopped")


async def test_call_that_outlasts_the_grace_is_cancelled_and_cleaned_up(tmp_path, logged):
    cleaned = asyncio.Event()

    async def behaviour(request, context):
        try:
            yield text("first")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    channel = open_channel(f"unix:{tmp_path}/run/echo.sock")
    async with channel, asyncio.timeout(10):
        async with echoing(tmp_path, unary_stream=behaviour, grace=timedelta(seconds=0.1)):
            call = Caller(channel).unary_stream(text("x"))
            await call.read()
        assert cleaned.is_set()
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


async def test_handler_that_will_not_end_cannot_hold_the_stop(tmp_path, logged):
    release = asyncio.Event()

    async def stubborn(request, context):
        yield text("first")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    channel = open_channel(f"unix:{tmp_path}/run/echo.sock")
    async with channel, asyncio.timeout(10):
        async with echoing(
            tmp_path,
            unary_stream=stubborn,
            grace=timedelta(seconds=0.1),
            stop_margin=timedelta(seconds=0.2),
        ):
            call = Caller(channel).unary_stream(text("x"))
            await call.read()
        release.set()
        (line,) = logged.of("taking too long")
        assert any("stubborn" in frame for frame in chain(*line["stacks"].values()))
        (line,) = logged.of("gave up waiting for calls to end")
        assert line["calls"] == {f"/{SERVICE}/UnaryStream": 1}
        await eventually(partial(logged.of, "call finished"))


async def test_watchdog_sees_a_stuck_loop(logged):
    stuck = threading.Event()
    with watching("a blocked loop", timedelta(seconds=0.05)):
        for _ in range(200):
            if stuck.wait(0.02) or logged.of("taking too long"):
                break
    (line,) = logged.of("taking too long")
    assert any("test_watchdog_sees" in frame for frame in line["stacks"]["thread MainThread"])


SERVER = """
import asyncio, sys
from datetime import timedelta
from workroom.rpc.logs import configure_logs
from workroom.rpc.server import Drain, Listener, serving, until_signalled
from tests.workroom.rpc.echo import Echo, SERVICE, text

async def hang(request, context):
    yield text("first")
    await asyncio.Event().wait()

async def main(path):
    configure_logs()
    async with serving([Echo(unary_stream=hang).register], Listener(f"unix:{path}"),
                       services=[SERVICE], grace=timedelta(seconds=float(sys.argv[2]))):
        asyncio.get_running_loop().call_soon(lambda: print("up", flush=True))
        await until_signalled()
    print("down", flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def spawned(tmp_path):
    processes: list[Any] = []

    def spawn(grace):
        path = tmp_path / "run" / "s.sock"
        process: Any = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path), str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "up\n"
        return process, path

    yield spawn
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_drains_and_ends_the_process(spawned, number):
    process, path = spawned(5)
    process.send_signal(number)
    out, err = await asyncio.to_thread(process.communicate, timeout=10)
    assert (process.returncode, out) == (0, "down\n")
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert events == ["serving", "asked to stop", "draining", "stopped"]
    assert not path.exists()


async def test_second_signal_ends_the_process_at_once(spawned):
    process, path = spawned(60)
    async with open_channel(f"unix:{path}") as channel:
        call = Caller(channel).unary_stream(text("x"))
        await call.read()
        process.send_signal(signal.SIGTERM)
        while json.loads(await asyncio.to_thread(process.stderr.readline))["event"] != "draining":
            pass
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 128 + signal.SIGTERM


async def test_repeated_notice_of_a_parents_death_does_not_end_the_process_at_once(spawned):
    process, path = spawned(0.5)
    async with open_channel(f"unix:{path}") as channel:
        call = Caller(channel).unary_stream(text("x"))
        await call.read()
        process.send_signal(signal.SIGHUP)
        while json.loads(await asyncio.to_thread(process.stderr.readline))["event"] != "draining":
            pass
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(process.wait, 10) == 0
    assert not path.exists()


async def test_socket_of_a_killed_server_is_taken_over(spawned, tmp_path):
    process, path = spawned(5)
    process.kill()
    process.wait()
    assert path.exists()
    again, _ = spawned(5)
    again.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(again.wait, 10) == 0
    assert not list(path.parent.iterdir())
