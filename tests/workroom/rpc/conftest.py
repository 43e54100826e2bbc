import io
import json
import logging

import pytest
import structlog

from workroom.rpc.logs import configure_logs


class Lines(io.StringIO):
    """What was logged, one dict a line."""

    def read_all(self):
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def of(self, event: str):
        return [line for line in self.read_all() if line["event"] == event]


@pytest.fixture
def logged():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    lines = Lines()
    configure_logs("debug", service="test", stream=lines)
    yield lines
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = before
