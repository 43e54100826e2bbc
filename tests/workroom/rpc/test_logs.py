import io
import json
import logging

import pytest
import structlog

from workroom.rpc.logs import REDACTED, configure_logs

log = structlog.get_logger("test")


def test_line_is_json_with_time_level_and_service(logged):
    log.info("thing happened", count=3)
    (line,) = logged.read_all()
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "thing happened", "level": "info", "service": "test", "count": 3}


def test_secrets_are_left_out_wherever_they_are(logged):
    log.info(
        "settings read",
        token="hidden-1",
        api_key="hidden-2",
        nested={"Authorization": "hidden-3", "list": [{"password": b"hidden-4"}]},
        text="sent Bearer hidden-token-5 on",
        x_secrets=["hidden-6"],
        exc=ValueError("Basic aGlkZGVuLTc="),
    )
    assert "hidden" not in logged.getvalue()
    assert "aGlk" not in logged.getvalue()
    (line,) = logged.read_all()
    assert line["token"] == line["api_key"] == line["nested"]["Authorization"] == REDACTED


def test_counts_and_names_of_tokens_stay(logged):
    log.info("model answered", input_tokens=12, token_id="tok_1", key="value", monkey="ape")
    (line,) = logged.read_all()
    assert (line["input_tokens"], line["token_id"]) == (12, "tok_1")
    assert (line["key"], line["monkey"]) == ("value", "ape")


def test_exception_is_logged_with_its_traceback(logged):
    try:
        raise KeyError("missing")
    except KeyError:
        log.exception("lookup failed")
    (line,) = logged.read_all()
    assert "KeyError: 'missing'" in line["exception"]
    assert "test_logs.py" in line["exception"]


def test_lines_of_libraries_have_the_same_shape(logged):
    structlog.contextvars.bind_contextvars(request_id="r")
    logging.getLogger("some.library").warning("disk %s of %s", "sda", "host")
    (line,) = logged.of("disk sda of host")
    assert (line["level"], line["service"], line["request_id"]) == ("warning", "test", "r")


def test_level_is_a_bound_for_ours_and_libraries_talk_from_warnings_on(logged):
    stream = io.StringIO()
    configure_logs("info", stream=stream)
    log.debug("not this")
    log.info("but this")
    logging.getLogger("some.library").info("not this")
    logging.getLogger("some.library").warning("and this")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "but this",
        "and this",
    ]


def test_terminal_gets_text_for_people(logged):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    configure_logs(stream=stream)
    try:
        raise KeyError("missing")
    except KeyError:
        log.exception("thing happened", token="hidden")
    assert "thing happened" in stream.getvalue()
    assert "KeyError" in stream.getvalue()
    assert "hidden" not in stream.getvalue()


def test_unknown_level_is_refused():
    with pytest.raises(ValueError, match="loud"):
        configure_logs("loud")
