import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr

from workroom.rpc.config import ConfigError, from_env, parse_duration
from workroom.rpc.tls import ServerTls


@dataclasses.dataclass(frozen=True)
class Inner:
    port: int = 1


class Config(BaseModel, frozen=True, extra="forbid"):
    address: str = "unix:/run/x.sock"
    grace: timedelta = timedelta(seconds=10)
    idle: timedelta | None = None
    capacity: int = Field(default=8, gt=0)
    verbose: bool = False
    token: SecretStr | None = None
    hosts: tuple[str, ...] = ()
    inner: Inner = Inner()
    tls: ServerTls | None = None


def read(**environ):
    return from_env(Config, "RUNTIME_", environ)


def test_defaults_hold_where_nothing_is_set():
    assert read(PATH="/bin", RUNTIME="x", OTHER_GRACE="1s") == Config()
    assert read(RUNTIME_GRACE="") == Config()


def test_every_kind_of_value_is_read():
    config = read(
        RUNTIME_GRACE="1m30s",
        RUNTIME_IDLE="250ms",
        RUNTIME_CAPACITY="3",
        RUNTIME_VERBOSE="true",
        RUNTIME_TOKEN="s",
        RUNTIME_HOSTS="a, b,,c",
        RUNTIME_INNER_PORT="9",
        RUNTIME_TLS_CERTIFICATE="/c.pem",
        RUNTIME_TLS_KEY="/k.pem",
    )
    assert config == Config(
        grace=timedelta(seconds=90),
        idle=timedelta(milliseconds=250),
        capacity=3,
        verbose=True,
        token=SecretStr("s"),
        hosts=("a", "b", "c"),
        inner=Inner(9),
        tls=ServerTls(Path("/c.pem"), Path("/k.pem")),
    )


def test_unknown_variable_names_the_nearest():
    with pytest.raises(ConfigError, match=r"RUNTIME_GRACES: .*did you mean RUNTIME_GRACE\?"):
        read(RUNTIME_GRACES="1s")
    with pytest.raises(ConfigError, match="known are RUNTIME_ADDRESS"):
        read(RUNTIME_QQQQQQQQQQQQ="1")


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        read(RUNTIME_GRACE="30", RUNTIME_NOPE="1", RUNTIME_IDLE="PT3S")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "RUNTIME_GRACE",
        "RUNTIME_IDLE",
        "RUNTIME_NOPE",
    ]


def test_refused_value_is_told_with_its_variable():
    with pytest.raises(ConfigError, match="RUNTIME_CAPACITY: .*greater than 0"):
        read(RUNTIME_CAPACITY="0")
    with pytest.raises(ConfigError, match="RUNTIME_TLS_KEY: "):
        read(RUNTIME_TLS_CERTIFICATE="/c.pem")


def test_secret_can_come_from_a_file(tmp_path):
    file = tmp_path / "token"
    file.write_text("from the file\n")
    assert read(RUNTIME_TOKEN_FILE=str(file)).token.get_secret_value() == "from the file"
    with pytest.raises(ConfigError, match="one of them is enough"):
        read(RUNTIME_TOKEN_FILE=str(file), RUNTIME_TOKEN="x")
    with pytest.raises(ConfigError, match="cannot read .*No such file"):
        read(RUNTIME_TOKEN_FILE=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no such setting"):
        read(RUNTIME_ADDRESS_FILE=str(file))


def test_secret_is_in_no_message():
    class Strict(BaseModel, frozen=True, extra="forbid"):
        token: SecretStr = Field(default=SecretStr("x" * 20), min_length=20)

    with pytest.raises(ConfigError) as caught:
        from_env(Strict, "X_", {"X_TOKEN": "hidden"})
    assert "hidden" not in str(caught.value)
    assert "hidden" not in repr(caught.value.__context__)
    assert "hidden" not in repr(read(RUNTIME_TOKEN="hidden"))


def test_what_kubernetes_adds_is_not_ours():
    config = read(
        RUNTIME_SERVICE_HOST="10.0.0.1",
        RUNTIME_SERVICE_PORT="7410",
        RUNTIME_SERVICE_PORT_GRPC="7410",
        RUNTIME_PORT="tcp://10.0.0.1:7410",
        RUNTIME_PORT_7410_TCP="tcp://10.0.0.1:7410",
        RUNTIME_PORT_7410_TCP_ADDR="10.0.0.1",
    )
    assert config == Config()


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("0s", timedelta()),
        ("1.5s", timedelta(seconds=1.5)),
        ("1h30m", timedelta(minutes=90)),
        (" 7d ", timedelta(days=7)),
    ],
)
def test_durations_are_read(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "5", "-5s", "5 s", "s", "5s!", "5x", "PT5S", "00:05:00"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
