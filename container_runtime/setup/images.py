"""Owns the images' set-up for callers that know no engine connection: the CLI and make."""

import os
from collections.abc import Mapping
from pathlib import Path

from container_runtime.image.bootstrap import LABEL as BOOTSTRAPPED_LABEL
from container_runtime.image.build import RECIPE_LABEL, ReadyImage, build_image
from container_runtime.image.recipe import DEFAULT_BASE_IMAGE, FILES, load_recipe
from container_runtime.setup.api import EngineApi
from container_runtime.setup.engine import ReadyEngine, default_state_dir
from container_runtime.setup.processes import Progress
from workroom.errors import InvalidField


async def ensure_image(
    name: str,
    engine: ReadyEngine,
    progress: Progress,
    *,
    state_dir: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ReadyImage:
    """Returns the image `base` or `full`, built if there is none that matches its recipe.

    RUNTIME_BASE_IMAGE names another Debian to build on. Raises InvalidField for another name,
    and a SetupFailed that says what was tried and what to do.
    """
    if name not in FILES:
        raise InvalidField("name", f"must be one of {', '.join(FILES)}, not {name!r}")
    async with EngineApi(engine.socket) as api:
        recipe = load_recipe(name, environment.get("RUNTIME_BASE_IMAGE") or DEFAULT_BASE_IMAGE)
        lock = (state_dir or default_state_dir()) / "image.lock"
        return await build_image(api, recipe, progress, lock=lock)


async def remove_images(engine: ReadyEngine, progress: Progress) -> None:
    """Removes every image that set-up has made on this engine; those in use stay."""
    async with EngineApi(engine.socket) as api:
        for label in (RECIPE_LABEL, BOOTSTRAPPED_LABEL):
            for image in await api.images(label=label):
                removed = await api.remove_image(image)
                progress(f"removed {image}" if removed else f"{image} is in use and stays")
