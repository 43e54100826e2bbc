from tests.container_runtime.fixtures import (  # noqa: F401
    container,
    engine,
    home,
    node,
)
