import asyncio
import io
import tarfile
import uuid
from datetime import timedelta

import aiodocker
import pytest

from container_runtime.image.bootstrap import ensure_base_image
from container_runtime.image.build import build_image
from container_runtime.image.recipe import Recipe, load_recipe
from container_runtime.setup.answering import engine_socket
from container_runtime.setup.api import EngineApi
from container_runtime.setup.engine import ensure_engine
from container_runtime.setup.errors import EngineCallFailed, ImageBuildFailed
from container_runtime.setup.images import ensure_image
from workroom.errors import InvalidField

pytestmark = pytest.mark.docker

LONG = timedelta(minutes=1)
BASE = "workroom/base:latest"
TOOLS = "curl gcc git jq make node npm npx pip ps python3 rg sqlite3 unzip"
USE_EVERYTHING = f"""
set -e
test "$(id -u):$HOME:$PWD" = 1000:/workspace:/workspace
for tool in {TOOLS}; do command -v $tool >/dev/null; done
touch written
node -e 'console.log("node")'
npm --version >/dev/null
echo 'int main(void) {{ return 0; }}' >a.c && gcc a.c -o a.out && ./a.out
python3 -m venv own
python3 - <<END
import matplotlib.pyplot as plot, openpyxl
openpyxl.Workbook().save("a.xlsx")
plot.plot([1, 2]); plot.savefig("a.png")
END
sqlite3 a.db 'create table t (x); insert into t values (1)'
sqlite3 a.db 'select count(*) from t'
"""


def ignore(_: str) -> None: ...


@pytest.fixture
async def engine():
    async with EngineApi(engine_socket()) as api:
        yield api


@pytest.fixture
async def label(engine):
    """A label of this test's own; what carries it is removed at the end."""
    label = f"workroom.test={uuid.uuid4().hex}"
    yield label
    for image in await engine.images(label=label):
        await engine.remove_image(image)


def context(dockerfile: str, **files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in {"Dockerfile": dockerfile.encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


async def build(engine: EngineApi, dockerfile: str, *, target: str = "made", progress=ignore):
    return await engine.build(
        context(dockerfile, content=uuid.uuid4().bytes),
        target=target,
        arguments={},
        labels={},
        timeout=LONG,
        progress=progress,
    )


async def test_image_that_matches_its_recipe_is_not_built_again(tmp_path):
    told: list[str] = []
    ready = await ensure_engine(ignore, state_dir=tmp_path)

    async with asyncio.timeout(10):
        image = await ensure_image("base", ready, told.append, state_dir=tmp_path)

    assert not image.built
    assert image.reference == f"workroom/base:{load_recipe('base').digest}"
    assert told == []


async def test_latest_is_the_image_that_matches(engine, tmp_path):
    image = await build_image(engine, load_recipe("base"), ignore, lock=tmp_path / "lock")

    assert await engine.image_id("workroom/base:latest") == image.id


async def test_other_names_are_refused(tmp_path):
    ready = await ensure_engine(ignore, state_dir=tmp_path)

    with pytest.raises(InvalidField) as raised:
        await ensure_image("desktop", ready, ignore, state_dir=tmp_path)

    assert "base, full" in raised.value.message


@pytest.mark.timeout(120)
async def test_base_image_serves_an_agent_without_a_network():
    async with aiodocker.Docker() as docker:
        container = await docker.containers.create(
            {
                "Image": "workroom/base:latest",
                "Cmd": ["sh", "-c", USE_EVERYTHING],
                "User": "1000",
                "Labels": {"workroom.test": "image"},
                "HostConfig": {"NetworkMode": "none"},
            }
        )
        try:
            await container.start()
            outcome = await container.wait(timeout=100)
            output = "".join(await container.log(stdout=True, stderr=True))
        finally:
            await container.delete(force=True)

    assert (outcome["StatusCode"], output.split()) == (0, ["node", "1"])


async def test_finished_image_tells_nothing_of_the_machine_that_built_it():
    async with aiodocker.Docker() as docker:
        history = await docker.images.history("workroom/base:latest")

    steps = [str(step) for step in history]
    assert not [step for step in steps if "machine" in step or "ca.pem" in step]


async def test_build_makes_an_image_without_a_name(engine, label):
    name, value = label.split("=")

    image = await build(engine, f"FROM scratch AS made\nLABEL {name}={value}\nCOPY content /\n")

    assert await engine.images(label=label, dangling=True) == [image]


async def test_failed_step_says_what_it_printed(engine, label):
    name, value = label.split("=")
    dockerfile = f"FROM {BASE} AS made\nLABEL {name}={value}\nRUN echo out of luck; exit 7\n"

    with pytest.raises(ImageBuildFailed) as raised:
        await build(engine, dockerfile)

    assert "returned a non-zero code: 7" in raised.value.metadata["error"]
    assert "out of luck" in raised.value.message


TINY = """
FROM {base} AS python-packages
LABEL workroom.stage=python-packages
LABEL {name}={value}
COPY machine/ /machine/
{step}
FROM scratch AS {target}
LABEL {name}={value} workroom.stage=test
COPY --from=python-packages /etc/hostname /
"""


def tiny_recipe(label: str, step: str) -> Recipe:
    name, value = label.split("=")
    target = f"test-{value}"
    dockerfile = TINY.format(base=BASE, name=name, value=value, target=target, step=step)
    return Recipe(target, BASE, {"Dockerfile": dockerfile.encode()})


async def test_only_the_finished_image_is_left(engine, label, tmp_path):
    recipe = tiny_recipe(label, "RUN true")

    image = await build_image(engine, recipe, ignore, lock=tmp_path / "lock")

    assert image.built
    assert sorted(await engine.images(label=label)) == [
        f"{recipe.repository}:{recipe.digest}",
        f"{recipe.repository}:latest",
    ]
    again = await build_image(engine, recipe, ignore, lock=tmp_path / "lock")
    assert (again.id, again.built) == (image.id, False)


async def test_failed_build_leaves_no_image(engine, label, tmp_path):
    with pytest.raises(ImageBuildFailed):
        await build_image(engine, tiny_recipe(label, "RUN false"), ignore, lock=tmp_path / "lock")

    assert await engine.images(label=label) == []


async def test_build_that_is_broken_off_leaves_no_image(engine, label, tmp_path):
    recipe = tiny_recipe(label, "RUN sleep 300")

    async with aiodocker.Docker() as docker, asyncio.TaskGroup() as tasks:
        building = tasks.create_task(build_image(engine, recipe, ignore, lock=tmp_path / "lock"))
        await until(docker, label, running=True)
        building.cancel()

    assert await engine.images(label=label) == []


async def test_cancelled_build_leaves_no_container(engine, label):
    name, value = label.split("=")
    dockerfile = f"FROM {BASE} AS made\nLABEL {name}={value}\nRUN sleep 300\n"

    async with aiodocker.Docker() as docker, asyncio.TaskGroup() as tasks:
        building = tasks.create_task(build(engine, dockerfile))
        await until(docker, label, running=True)
        building.cancel()
        await until(docker, label, running=False)


async def until(docker: aiodocker.Docker, label: str, *, running: bool) -> None:
    async with asyncio.timeout(20):
        while True:
            found = await docker.containers.list(all=True, filters={"label": [label]})
            if bool(found) == running:
                return
            await asyncio.sleep(0.02)


async def test_image_that_cannot_be_pulled_says_so_within_bounds(engine):
    async with asyncio.timeout(25):
        with pytest.raises(EngineCallFailed):
            await engine.pull(
                "127.0.0.1:1/nobody/here:latest", silence=timedelta(seconds=20), timeout=LONG
            )


async def test_archive_becomes_an_image_with_its_labels(engine, label, tmp_path):
    name, value = label.split("=")
    archive = tmp_path / "root.tar"
    archive.write_bytes(context("nothing"))

    await engine.import_image(archive, "workroom/test", value, labels={name: value})

    assert await engine.images(label=label) == [f"workroom/test:{value}"]


async def test_base_image_that_is_here_is_neither_pulled_nor_made(engine):
    told: list[str] = []

    base = await ensure_base_image(engine, "workroom/base:latest", told.append)

    assert (base.reference, base.origin, told) == ("workroom/base:latest", "local", [])


async def test_engine_that_is_not_there_is_an_error(tmp_path):
    async with EngineApi(tmp_path / "missing.sock") as api:
        with pytest.raises(EngineCallFailed) as raised:
            await api.engine()

    assert str(tmp_path) in raised.value.message
