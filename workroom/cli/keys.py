"""`workroom keys`: what other programs present to the orchestrator's TCP address."""

import asyncio
import json

import click

from workroom.cli.owner import owner
from workroom.orchestrator.v1 import keys_pb2
from workroom.rpc.channel import translate_errors


@click.group()
def keys() -> None:
    """Create, list and delete keys. The services must be up."""


@keys.command()
@click.argument("name")
def create(name: str) -> None:
    """Create a key called NAME and print it; it is shown this once."""

    async def work() -> str:
        async with owner() as client:
            with translate_errors():
                response = await client.keys.CreateKey(keys_pb2.CreateKeyRequest(name=name))
        return response.secret

    click.echo(asyncio.run(work()))


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(as_json: bool) -> None:
    """List the keys, without what they are."""

    async def work() -> list[keys_pb2.Key]:
        found: list[keys_pb2.Key] = []
        token = ""
        async with owner() as client:
            while True:
                request = keys_pb2.ListKeysRequest(page_size=100, page_token=token)
                with translate_errors():
                    page = await client.keys.ListKeys(request)
                found.extend(page.keys)
                token = page.next_page_token
                if not token:
                    return found

    for key in asyncio.run(work()):
        created = key.create_time.ToDatetime().isoformat(timespec="seconds") + "Z"
        if as_json:
            click.echo(json.dumps({"id": key.id, "name": key.name, "createTime": created}))
        else:
            click.echo(f"{key.id}  {created}  {key.name}")


@keys.command()
@click.argument("key_id")
def delete(key_id: str) -> None:
    """Delete the key with id KEY_ID; calls with it are refused from then on."""

    async def work() -> None:
        async with owner() as client:
            with translate_errors():
                await client.keys.DeleteKey(keys_pb2.DeleteKeyRequest(key_id=key_id))

    asyncio.run(work())
