"""Owns which containers are ours: the labels that say so, and where their things lie on the node.

Nothing without this installation's label is ever touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from container_runtime.interpreter import Bundle
from container_runtime.records import ContainerRecord

INSTALLATION_LABEL = "workroom.installation"
CONTAINER_LABEL = "workroom.container"
NODE_LABEL = "workroom.node"


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation's part of a node."""

    id: str
    node_id: str
    link_directory: Path
    """Holds a folder per container, with the socket that its supervisor dials."""
    spool_directory: Path
    bundle: Bundle
    """The interpreter that supervisors run in."""

    def labels(self) -> Mapping[str, str]:
        """What every one of our containers carries."""
        return {INSTALLATION_LABEL: self.id}

    def labels_for(self, record: ContainerRecord) -> Mapping[str, str]:
        """What this one carries."""
        return {
            **self.labels(),
            CONTAINER_LABEL: record.id,
            NODE_LABEL: self.node_id,
        }

    def link_of(self, container_id: str) -> Path:
        """Where a container's socket is."""
        return self.link_directory / container_id
