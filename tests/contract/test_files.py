"""What every engine must do for files."""

import asyncio
import os
import sys

import grpc
import pytest

from tests.container_runtime.node import digest, file_path, reason
from workroom.runtime.v1 import filesystem_pb2 as fpb


async def test_a_file_comes_back_as_it_was_written(node, container):
    data = os.urandom(3_000_000)
    written = await node.calls.write(
        container, "/workspace/a/b", data, make_parents=True, mode=0o600
    )
    assert (written.size_bytes, written.mode, written.uid) == (len(data), 0o600, 1000)
    assert digest(await node.calls.read(container, "/workspace/a/b")) == digest(data)
    part = await node.calls.read(container, "/workspace/a/b", offset=1000, limit_bytes=2000)
    assert part == data[1000:3000]


async def test_large_files_stream_both_ways(node, container):
    data = os.urandom(2**20) * 64
    await node.calls.write(container, "/workspace/large", data)
    assert digest(await node.calls.read(container, "/workspace/large")) == digest(data)


async def test_an_offset_past_the_end_is_out_of_range(node, container):
    await node.calls.write(container, "/workspace/f", b"abc")
    assert await node.calls.read(container, "/workspace/f", offset=3) == b""
    with pytest.raises(grpc.aio.AioRpcError) as past:
        await node.calls.read(container, "/workspace/f", offset=4)
    assert reason(past.value) == "OFFSET_OUT_OF_RANGE"


async def test_a_write_that_breaks_off_changes_nothing(node, container):
    await node.calls.write(container, "/workspace/f", b"before")

    async def parts():
        opening = fpb.WriteFileRequest.Open(container_id=container, path=file_path("/workspace/f"))
        yield fpb.WriteFileRequest(open=opening)
        yield fpb.WriteFileRequest(data=b"after")
        yield fpb.WriteFileRequest(open=opening)

    with pytest.raises(grpc.aio.AioRpcError):
        await node.calls.files.WriteFile(parts())
    assert await node.calls.read(container, "/workspace/f") == b"before"
    listed = await node.calls.files.ListFiles(
        fpb.ListFilesRequest(container_id=container, path=file_path("/workspace"))
    )
    assert [each.path.text for each in listed.files] == ["/workspace/f"]


async def test_a_caller_that_leaves_in_the_middle_changes_nothing(node, container):
    await node.calls.write(container, "/workspace/f", b"before")
    call = node.calls.files.WriteFile()
    opening = fpb.WriteFileRequest.Open(container_id=container, path=file_path("/workspace/f"))
    await call.write(fpb.WriteFileRequest(open=opening))
    await call.write(fpb.WriteFileRequest(data=b"half of it"))
    call.cancel()
    for _ in range(20):
        assert await node.calls.read(container, "/workspace/f") == b"before"


async def test_names_are_bytes(node, container):
    name = b"/workspace/caf\xe9\n\xff"
    await node.calls.write(container, name, b"x")
    listed = await node.calls.files.ListFiles(
        fpb.ListFilesRequest(container_id=container, path=file_path("/workspace"))
    )
    (entry,) = listed.files
    assert entry.path.raw.endswith(b"caf\xe9\n\xff")
    assert await node.calls.read(container, name) == b"x"


async def test_symbolic_links_are_told_and_lead_nowhere_else(node, container):
    await node.calls.run(
        container, "ln -s /etc/shadow secret; ln -s / up; ln -s ../../../../../etc/passwd deep"
    )
    stat = await node.calls.files.StatFile(
        fpb.StatFileRequest(container_id=container, path=file_path("/workspace/secret"))
    )
    assert stat.file.kind == fpb.FileInfo.KIND_SYMBOLIC_LINK
    assert stat.file.link_target == b"/etc/shadow"
    inside = (await node.calls.run(container, "cat /etc/passwd")).stdout.head
    assert await node.calls.read(container, "/workspace/deep") == inside
    assert await node.calls.read(container, "/workspace/../../../etc/passwd") == inside
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.write(container, "/workspace/up/etc/passwd", b"")
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_files_are_the_default_users_unless_root_is_asked_for(node, container):
    with pytest.raises(grpc.aio.AioRpcError) as denied:
        await node.calls.write(container, "/etc/x", b"")
    assert reason(denied.value) == "FILE_PERMISSION_DENIED"
    written = await node.calls.write(container, "/etc/x", b"r", as_root=True)
    assert written.uid == 0


async def test_directories_are_made_listed_moved_and_removed(node, container):
    files = node.calls.files
    make = fpb.MakeDirectoryRequest(
        container_id=container, path=file_path("/workspace/d/e"), make_parents=True
    )
    for _ in range(2):
        await files.MakeDirectory(make)
    for name in "cab":
        await node.calls.write(container, f"/workspace/d/e/{name}", name.encode())
    seen, token = [], ""
    while True:
        page = await files.ListFiles(
            fpb.ListFilesRequest(
                container_id=container,
                path=file_path("/workspace/d/e"),
                page_size=2,
                page_token=token,
            )
        )
        seen += [each.path.text.rsplit("/", 1)[-1] for each in page.files]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["a", "b", "c"]
    await files.MoveFile(
        fpb.MoveFileRequest(
            container_id=container,
            source=file_path("/workspace/d/e/a"),
            destination=file_path("/workspace/d/e/b"),
        )
    )
    assert await node.calls.read(container, "/workspace/d/e/b") == b"a"
    plain = fpb.RemoveFileRequest(container_id=container, path=file_path("/workspace/d"))
    with pytest.raises(grpc.aio.AioRpcError) as full:
        await files.RemoveFile(plain)
    assert reason(full.value) == "DIRECTORY_NOT_EMPTY"
    whole = fpb.RemoveFileRequest(
        container_id=container, path=file_path("/workspace/d"), recursive=True
    )
    for _ in range(2):
        await files.RemoveFile(whole)


async def test_wrong_kinds_are_told_apart(node, container):
    await node.calls.write(container, "/workspace/f", b"x")
    await node.calls.run(container, "mkfifo pipe")
    cases = {
        "/workspace": "IS_A_DIRECTORY",
        "/workspace/none": "FILE_NOT_FOUND",
        "/workspace/f/below": "NOT_A_DIRECTORY",
        "/workspace/pipe": "NOT_A_REGULAR_FILE",
        "relative": "INVALID_FIELD",
    }
    for path, expected in cases.items():
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.calls.read(container, path)
        assert reason(refused.value) == expected, path
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.calls.files.ListFiles(
            fpb.ListFilesRequest(container_id=container, path=file_path("/workspace/f"))
        )
    assert reason(refused.value) == "NOT_A_DIRECTORY"


VANISHING = """
import asyncio, os, sys
from workroom.rpc.channel import open_channel
from workroom.runtime.v1 import filesystem_pb2 as pb, filesystem_pb2_grpc as rpc

async def main(address, container):
    files = rpc.FileServiceStub(open_channel(address))
    calls = []
    for number in range(20):
        call = files.WriteFile()
        path = pb.FilePath(text=f"/workspace/f{number}")
        opening = pb.WriteFileRequest.Open(container_id=container, path=path)
        await call.write(pb.WriteFileRequest(open=opening))
        await call.write(pb.WriteFileRequest(data=b"half of it"))
        calls.append(call)
    print("written", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_caller_that_is_killed_in_the_middle_changes_nothing(node, container):
    for number in range(20):
        await node.calls.write(container, f"/workspace/f{number}", b"before")
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", VANISHING, node.address, container), stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"written\n"
    client.kill()
    await client.wait()
    for number in range(20):
        assert await node.calls.read(container, f"/workspace/f{number}") == b"before"
    done = await node.calls.run(container, "sleep 0.2; cat f*; ls -A | wc -l")
    assert done.stdout.head == b"before" * 20 + b"20\n"
