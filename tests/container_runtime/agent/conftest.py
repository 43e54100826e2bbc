from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from container_runtime.interpreter import Bundle, collect
from tests.container_runtime.agent.supervised import Box, supervised


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return collect(tmp_path_factory.mktemp("state"))


@pytest.fixture
def box(
    bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], AbstractAsyncContextManager[Box]]:
    """Opens a connected supervisor; to be entered by the test's own task."""
    directory: Path = tmp_path_factory.mktemp("box")
    directory.chmod(0o777)
    return lambda: supervised(bundle, directory)
