"""Owns the options that choose what tests run against, and the databases that they run on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests import postgres

_numbers = count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("fake", "docker"),
        default="fake",
        help="the container engine that the contract suite runs on",
    )


@pytest.fixture(scope="session")
def cluster() -> Iterator[Callable[[], postgres.Cluster]]:
    """Gives the tests' own PostgreSQL, which is started when it is first asked for."""
    with ExitStack() as stack:
        started: list[postgres.Cluster] = []

        def start() -> postgres.Cluster:
            if not started:
                started.append(stack.enter_context(postgres.cluster()))
            return started[0]

        yield start


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, cluster: Callable[[], postgres.Cluster]) -> str:
    """Where an orchestrator keeps its state: empty for SQLite in its home."""
    if request.param == "sqlite":
        return ""
    return cluster().database(f"test_{next(_numbers)}")
