import pytest

from orchestrator.models.catalog import ModelCatalog, ModelOverride, ModelSettings
from orchestrator.models.model import Message, ModelRequest
from orchestrator.models.retry import RetryPolicy
from tests.orchestrator.models.conftest import KEY
from tests.orchestrator.models.said import ask, good_stream
from tests.orchestrator.models.server import running_server, stream
from workroom.errors import InvalidField


async def hello(chosen) -> str:
    request = ModelRequest(chosen.name, [Message.of("user", "hi")])
    return (await ask(chosen.model, request)).text


@pytest.mark.parametrize("protocol", ["responses", "chat"])
async def test_the_settings_choose_protocol_and_model(server, protocol):
    server.always = stream(good_stream(protocol))
    settings = ModelSettings(protocol, server.base_url, KEY, "m-1")
    async with ModelCatalog.open(settings) as catalog:
        assert await hello(catalog.choose()) == "hello"
        assert await hello(catalog.choose(ModelOverride(model="m-2"))) == "hello"
    assert [received.body["model"] for received in server.received] == ["m-1", "m-2"]


async def test_a_script_is_played_by_its_path(tmp_path):
    script = tmp_path / "demo.yaml"
    script.write_text("script: demo\nsteps: [{answer: hello}]")
    async with ModelCatalog.open(ModelSettings("scripted", str(script))) as catalog:
        assert await hello(catalog.choose()) == "hello"
        with pytest.raises(InvalidField, match="model_base_url"):
            catalog.choose(ModelOverride(base_url="http://127.0.0.1:1/v1"))


async def test_another_server_must_be_allowed_and_never_gets_our_key(server):
    async with running_server() as other:
        other.always = stream(good_stream("chat"))
        refused = ModelSettings("chat", server.base_url, KEY, "m-1")
        async with ModelCatalog.open(refused) as catalog:
            with pytest.raises(InvalidField, match="not one that sessions may name"):
                catalog.choose(ModelOverride(base_url=other.base_url))
        allowed = ModelSettings(
            "chat", server.base_url, KEY, "m-1", allowed_base_urls=(other.base_url,)
        )
        async with ModelCatalog.open(allowed) as catalog:
            await hello(catalog.choose(ModelOverride(base_url=other.base_url + "/")))
            await hello(catalog.choose(ModelOverride(base_url=other.base_url, api_key="own")))
        keys = [received.headers.get("authorization") for received in other.received]
        assert keys == [None, "Bearer own"]


async def test_a_sessions_own_key_is_used_at_our_server(server):
    server.always = stream(good_stream("chat"))
    async with ModelCatalog.open(ModelSettings("chat", server.base_url, KEY, "m-1")) as catalog:
        await hello(catalog.choose(ModelOverride(api_key="own")))
        await hello(catalog.choose(ModelOverride(base_url=server.base_url)))
    keys = [received.headers["authorization"] for received in server.received]
    assert keys == ["Bearer own", f"Bearer {KEY}"]


async def test_a_model_must_be_named_somewhere(server):
    async with ModelCatalog.open(ModelSettings("chat", server.base_url)) as catalog:
        with pytest.raises(InvalidField, match="no default model"):
            catalog.choose()


@pytest.mark.parametrize(
    ("protocol", "base_url", "field"),
    [("grpc", "http://h/v1", "protocol"), ("chat", "", "base_url"), ("chat", "h", "base_url")],
)
def test_settings_that_cannot_work_are_refused(protocol, base_url, field):
    with pytest.raises(InvalidField) as caught:
        ModelSettings(protocol, base_url)
    assert caught.value.field == field


def test_settings_do_not_show_the_key():
    assert KEY not in repr(ModelSettings("chat", "http://h/v1", KEY, retry=RetryPolicy()))
