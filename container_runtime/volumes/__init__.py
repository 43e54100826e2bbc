"""The size-limited file systems that containers have for `/workspace` and `/tmp`.

Knows neither containers' lives nor the engine: a volume has an id, a size and a content.
"""

from container_runtime.volumes.errors import VolumeFailed
from container_runtime.volumes.volumes import Usage, Volumes, WritableMount

__all__ = ["Usage", "VolumeFailed", "Volumes", "WritableMount"]
