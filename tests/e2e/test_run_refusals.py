"""`workroom run` with something that cannot be: says what and what to do, and leaves nothing."""

import json
import socket
import time

import pytest

from tests.e2e.place import Done, script
from tests.orchestrator.models.server import running_server, status

pytestmark = [pytest.mark.docker, pytest.mark.timeout(90)]

ANSWER = "script: one\nsteps: [{answer: done}]\n"


def refused(done: Done, *texts: str) -> None:
    """It failed with one message in which all of these are, and no traceback."""
    assert done.code not in (0, None), done.out
    assert "Traceback" not in done.out + done.err
    for text in texts:
        assert text in done.err, done.err


def closed_port() -> int:
    """A port of the loopback address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_model_server_that_cannot_be_reached_is_named(up):
    url = f"http://127.0.0.1:{closed_port()}/v1"
    done = await up.workroom("run", "hi", "--base-url", url, "--model", "m")
    refused(done, "cannot be reached", url, "check that it runs", "--base-url")


@pytest.mark.parametrize("protocol", ["responses", "chat"])
async def test_a_wrong_key_is_said_to_be_wrong_and_is_not_shown(up, protocol):
    async with running_server() as server:
        server.always = status(401, {"error": {"message": "bad key", "code": "invalid_api_key"}})
        words = ("--base-url", server.base_url, "--model", "m", "--protocol", protocol)
        done = await up.workroom("run", "hi", *words, ORCHESTRATOR_MODEL_API_KEY="sk-wrong-1")
    refused(done, "refused the key", "ORCHESTRATOR_MODEL_API_KEY")
    assert "sk-wrong-1" not in done.out + done.err
    assert len(server.received) == 1
    assert server.received[0].headers["authorization"] == "Bearer sk-wrong-1"


async def test_an_unknown_model_is_named(up):
    async with running_server() as server:
        error = {"message": "The model `m-9` does not exist", "code": "model_not_found"}
        server.always = status(404, {"error": error})
        done = await up.workroom("run", "hi", "--base-url", server.base_url, "--model", "m-9")
    refused(done, "no such model", "'m-9'", "--model")


async def test_a_base_url_without_a_model_asks_for_one(up):
    done = await up.workroom("run", "hi", "--base-url", "http://127.0.0.1:9/v1")
    refused(done, "--model")


async def test_a_base_url_that_is_none_is_refused(up):
    done = await up.workroom("run", "hi", "--base-url", "localhost:9", "--model", "m")
    refused(done, "base_url", "http")


async def test_a_model_without_a_server_is_not_silently_replaced_by_a_script(up):
    done = await up.workroom("run", "hi", "--model", "m")
    refused(done, "--base-url", "ORCHESTRATOR_MODEL_BASE_URL")


@pytest.mark.parametrize("image", ["nosuch", "nosuch/thing:1", "No Such Image", "a:b:c"])
async def test_an_image_that_does_not_exist_is_named_soon(up, image):
    began = time.monotonic()
    done = await up.workroom("run", "hi", "--image", image)
    assert time.monotonic() - began < 15
    refused(done, image, "base")


async def test_a_missing_file_is_named(place):
    refused(await place.workroom("run", "hi", "--file", "no.csv"), "no.csv", "does not exist")
    assert not place.home.exists()


async def test_a_directory_as_a_file_is_named(place):
    (place.root / "data").mkdir()
    done = await place.workroom("run", "hi", "--file", "data")
    refused(done, "data is a directory", "name the files in it")


@pytest.mark.parametrize("name", ["a\nb.csv", "a\x1b[31m.csv"])
async def test_a_name_that_steers_the_terminal_is_refused_and_shown_escaped(place, name):
    (place.root / name).write_text("1")
    done = await place.workroom("run", "hi", "--file", name)
    refused(done, repr(name)[1:-1], "rename")
    assert len(done.err.splitlines()) == 1 and "\x1b[31m.csv" not in done.err


async def test_a_name_that_is_not_text_is_refused(place):
    name = b"\xff.csv".decode(errors="surrogateescape")
    (place.root / name).write_text("1")
    refused(await place.workroom("run", "hi", "--file", name), "--file", "rename")


async def test_two_files_of_one_name_are_refused(place):
    for folder in ("a", "b"):
        (place.root / folder).mkdir()
        (place.root / folder / "x.csv").write_text("1")
    done = await place.workroom("run", "hi", "--file", "a/x.csv", "--file", "b/x.csv")
    refused(done, "a/x.csv and b/x.csv have the same name")


async def test_a_missing_script_is_named(place):
    refused(await place.workroom("run", "hi", "--script", "no.yaml"), "no.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [", "script.yaml:1"),
        ("script: x\nsteps: [{anser: hi}]\n", "anser"),
        ("script: x\nsteps: []\n", "steps"),
        ("", "script"),
    ],
)
async def test_a_bad_script_is_told_with_its_place(up, text, said):
    done = await up.workroom("run", "hi", "--script", script(up, text))
    refused(done, "script.yaml", said)


@pytest.mark.parametrize("prompt", ["", " \n\t "])
async def test_an_empty_prompt_is_refused(place, prompt):
    refused(await place.workroom("run", prompt), "PROMPT is empty")


async def test_a_script_and_a_model_exclude_each_other(place):
    path = script(place, ANSWER)
    done = await place.workroom("run", "hi", "--script", path, "--model", "m")
    refused(done, "--script", "--model")


async def test_an_out_folder_that_cannot_be_written_is_refused_before_anything_runs(place):
    blocked = place.root / "file"
    blocked.write_text("")
    path = script(place, ANSWER)
    done = await place.workroom("run", "hi", "--script", path, "--out", blocked / "out")
    refused(done, "--out", str(blocked))
    assert not place.home.exists()


async def test_refusals_are_the_last_json_line_for_a_program(up):
    done = await up.workroom("run", "hi", "--json", "--image", "nosuch")
    refused(done, "nosuch")
    assert done.result["turn"]["state"] == "STATE_FAILED"
    assert "nosuch" in done.result["turn"]["error"]["message"]
    assert json.loads(done.out.splitlines()[0])["sequenceNumber"] == "1"
