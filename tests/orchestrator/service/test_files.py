"""Uploaded files, over the wire."""

import asyncio

import pytest

from tests.orchestrator.service.conftest import Peers, calls, heard, items, scripted, until
from workroom.client import Client
from workroom.errors import WorkroomError
from workroom.orchestrator.v1 import files_pb2 as pb
from workroom.rpc.channel import translate_errors


async def upload(client: Client, *data: bytes, name: str = "a.csv", request_id: str = ""):
    opened = pb.UploadFileRequest.Open(filename=name, request_id=request_id)
    parts = [pb.UploadFileRequest(open=opened), *(pb.UploadFileRequest(data=d) for d in data)]
    with translate_errors():
        return (await client.files.UploadFile(iter(parts))).file


async def test_an_uploaded_file_reaches_the_container(client: Client):
    file = await upload(client, b"one,", b"two\n")
    assert (file.filename, file.size_bytes) == ("a.csv", 8)
    request = scripted(calls("cat data/a.csv"))
    request.environment.files.add(path="/workspace/data/a.csv", file_id=file.id)
    created = await client.sessions.CreateSession(request)
    await client.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    await heard(client, created.session.id)
    command = (await items(client, created.session.id))[1]
    assert command.command_execution.stdout == "one,two\n"


async def test_a_request_id_stores_a_file_once(client: Client, peers: Peers):
    first = await upload(client, b"abc", request_id="r")
    assert await upload(client, b"a", b"bc", request_id="r") == first
    with pytest.raises(WorkroomError) as raised:
        await upload(client, b"other", request_id="r")
    assert raised.value.reason == "REQUEST_ID_REUSED"
    assert len(list((peers.home().db / "blobs" / "files").iterdir())) == 1


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 256])
async def test_a_name_that_is_none_is_refused(client: Client, name: str):
    with pytest.raises(WorkroomError) as raised:
        await upload(client, b"x", name=name)
    assert raised.value.reason == "INVALID_FIELD"


async def test_an_upload_must_begin_with_what_it_is(client: Client):
    with pytest.raises(WorkroomError) as raised, translate_errors():
        await client.files.UploadFile(iter([pb.UploadFileRequest(data=b"x")]))
    assert raised.value.reason == "INVALID_FIELD"


async def test_files_are_listed_newest_first_and_deleted(client: Client, peers: Peers):
    made = [await upload(client, b"x", name=str(number)) for number in range(3)]
    page = await client.files.ListFiles(pb.ListFilesRequest(page_size=2))
    assert [file.id for file in page.files] == [made[2].id, made[1].id]
    rest = await client.files.ListFiles(pb.ListFilesRequest(page_token=page.next_page_token))
    assert [file.id for file in rest.files] == [made[0].id]
    for file in made:
        await client.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
        await client.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    with pytest.raises(WorkroomError) as raised, translate_errors():
        await client.files.GetFile(pb.GetFileRequest(file_id=made[0].id))
    assert raised.value.reason == "FILE_NOT_FOUND"
    assert not list((peers.home().db / "blobs" / "files").iterdir())


async def test_an_upload_that_breaks_off_leaves_nothing(client: Client, peers: Peers):
    async def parts():
        yield pb.UploadFileRequest(open=pb.UploadFileRequest.Open(filename="a"))
        yield pb.UploadFileRequest(data=b"half")
        await asyncio.sleep(60)

    call = client.files.UploadFile(parts())
    folder = peers.home().db / "blobs" / "files"
    await until(lambda: folder.exists() and bool(list(folder.iterdir())))
    call.cancel()
    await until(lambda: not list(folder.iterdir()))
