import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from container_runtime.interpreter import Bundle, collect
from tests.container_runtime.agent.supervised import Box, supervised


@pytest.fixture(scope="session")
def bundle() -> Iterator[Bundle]:
    with tempfile.TemporaryDirectory(prefix="workroom-test-") as name:
        os.chmod(name, 0o755)
        yield collect(Path(name))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that the unprivileged user of commands can reach and write."""
    with tempfile.TemporaryDirectory(prefix="workroom-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def box(
    bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], AbstractAsyncContextManager[Box]]:
    """Opens a connected supervisor; to be entered by the test's own task."""
    directory: Path = tmp_path_factory.mktemp("box")
    return lambda: supervised(bundle, directory)
