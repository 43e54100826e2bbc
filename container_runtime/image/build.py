"""Owns the promise that an image of ours exists and matches its recipe.

An image gets its name only when it is complete; a build that ends early leaves none behind.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from container_runtime.image.bootstrap import ensure_base_image
from container_runtime.image.machine import borrow
from container_runtime.image.recipe import Recipe
from container_runtime.setup.api import EngineApi
from container_runtime.setup.errors import EngineCallFailed
from container_runtime.setup.processes import Progress, locked

BUILD_TIMEOUT = timedelta(minutes=30)
CLEANUP_TIMEOUT = timedelta(seconds=15)
CLEANUP_POLL = timedelta(milliseconds=200)
RECIPE_LABEL = "workroom.recipe"
STAGE_LABEL = "workroom.stage"
"""Set by the Dockerfile on every stage, so that what a build leaves behind can be found."""


@dataclass(frozen=True)
class ReadyImage:
    """A local image that matches its recipe. `reference` is the name that does not move."""

    reference: str
    id: str
    built: bool


async def build_image(
    engine: EngineApi,
    recipe: Recipe,
    progress: Progress,
    *,
    lock: Path,
) -> ReadyImage:
    """Returns the image `workroom/NAME:<digest>`, also named `latest`, building it if need be.

    Raises BaseImageUnavailable, ImageBuildFailed or EngineCallFailed. Builds on one machine
    wait for each other.
    """
    ready = await _existing(engine, recipe)
    if ready is not None:
        return ready
    async with locked(lock, timeout=BUILD_TIMEOUT, progress=progress):
        ready = await _existing(engine, recipe)
        if ready is not None:
            return ready
        image = await _build(engine, recipe, progress)
    reference = f"{recipe.repository}:{recipe.digest}"
    progress(f"{reference} is ready")
    return ReadyImage(reference, image, built=True)


async def _existing(engine: EngineApi, recipe: Recipe) -> ReadyImage | None:
    reference = f"{recipe.repository}:{recipe.digest}"
    image = await engine.image_id(reference)
    if image is None:
        return None
    if await engine.image_id(f"{recipe.repository}:latest") != image:
        await engine.tag(image, recipe.repository, "latest")
    return ReadyImage(reference, image, built=False)


async def _build(engine: EngineApi, recipe: Recipe, progress: Progress) -> str:
    base = await ensure_base_image(engine, recipe.base_image, progress)
    machine = await borrow()
    progress(f"building {recipe.repository} on {base.reference}; this takes a minute or two")
    try:
        image = await engine.build(
            recipe.context(machine.files),
            target=recipe.name,
            arguments={"BASE_IMAGE": base.reference, **machine.arguments},
            labels={
                RECIPE_LABEL: recipe.digest,
                "workroom.base": f"{base.origin} {base.reference}",
            },
            timeout=BUILD_TIMEOUT,
            progress=progress,
        )
        await engine.tag(image, recipe.repository, recipe.digest)
        await engine.tag(image, recipe.repository, "latest")
    finally:
        await _remove_unnamed(engine, progress)
    return image


async def _remove_unnamed(engine: EngineApi, progress: Progress) -> None:
    """Removes the stages' images that have no name: what was borrowed, and what is half done.

    A build that was broken off holds on to its image until its container is gone, so what is
    in use is tried again for a while. Raises nothing: the build's own outcome matters more.
    """
    deadline = time.monotonic() + CLEANUP_TIMEOUT.total_seconds()
    try:
        while True:
            unnamed = await engine.images(label=STAGE_LABEL, dangling=True)
            removed = [await engine.remove_image(image) for image in unnamed]
            if all(removed):
                return
            if time.monotonic() > deadline:
                progress(f"images without a name are in use and stay: {', '.join(unnamed)}")
                return
            await asyncio.sleep(CLEANUP_POLL.total_seconds())
    except EngineCallFailed as error:
        progress(f"images without a name may be left: {error.message}")
