"""Owns the options that choose what tests run against."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("fake", "docker"),
        default="fake",
        help="the container engine that the contract suite runs on",
    )
