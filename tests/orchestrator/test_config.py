"""Settings and what they mean where nothing is set."""

from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.config import Config
from workroom.paths import Home
from workroom.rpc.config import ConfigError


def test_defaults_depend_on_the_home(tmp_path: Path):
    home = Home(tmp_path / "home").create()
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    config = Config.from_env({}).settled(home, environ)
    assert config.address == "127.0.0.1:7410"
    assert config.socket == f"unix:{home.run}/orchestrator.sock"
    assert config.runtime_address == f"unix:{home.run}/runtime.sock"
    assert config.key_file is not None
    assert config.key_file.parent == tmp_path / "config" / "workroom"
    assert config.model_settings() is None


def test_the_model_is_named_by_the_environment():
    config = Config.from_env(
        {
            "ORCHESTRATOR_MODEL_PROTOCOL": "chat",
            "ORCHESTRATOR_MODEL_BASE_URL": "http://127.0.0.1:8000/v1",
            "ORCHESTRATOR_MODEL_API_KEY": "secret",
            "ORCHESTRATOR_MODEL": "some",
            "ORCHESTRATOR_MAX_TURN_TIME": "90s",
        }
    )
    settings = config.model_settings()
    assert settings is not None
    assert (settings.protocol, settings.model, settings.api_key) == ("chat", "some", "secret")
    assert config.max_turn_time == timedelta(seconds=90)
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MODEL_PROTOCOL", "telepathy"), ("MAX_STEPS", "0"), ("NO_SUCH", "x"), ("GRACE", "soon")],
)
def test_a_wrong_setting_is_named(name: str, value: str):
    with pytest.raises(ConfigError, match=f"ORCHESTRATOR_{name}"):
        Config.from_env({f"ORCHESTRATOR_{name}": value})
