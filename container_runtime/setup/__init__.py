"""Makes a machine ready to run containers: an engine that answers, and the images."""

from container_runtime.setup.engine import ReadyEngine, ensure_engine, stop_engine
from container_runtime.setup.errors import SetupFailed
from container_runtime.setup.images import ensure_image, remove_images
from container_runtime.setup.processes import Progress

__all__ = [
    "Progress",
    "ReadyEngine",
    "SetupFailed",
    "ensure_engine",
    "ensure_image",
    "remove_images",
    "stop_engine",
]
