from datetime import timedelta

import pytest

from container_runtime.config import Config
from workroom.paths import Home
from workroom.rpc.config import ConfigError
from workroom.rpc.listeners import InsecureListener


def test_the_default_is_a_socket_in_the_home(tmp_path):
    config = Config.from_env({})
    home = config.folder({"WORKROOM_HOME": str(tmp_path)})
    assert home == Home(tmp_path)
    assert config.listener(home).address == f"unix:{tmp_path}/run/runtime.sock"


def test_tcp_needs_a_token_or_mutual_tls(tmp_path):
    open_to_all = Config.from_env({"RUNTIME_ADDRESS": "127.0.0.1:0"})
    with pytest.raises(InsecureListener):
        open_to_all.listener(Home(tmp_path)).parsed()
    guarded = Config.from_env({"RUNTIME_ADDRESS": "127.0.0.1:0", "RUNTIME_TOKEN": "secret"})
    guarded.listener(Home(tmp_path)).parsed()
    assert "secret" not in repr(guarded)


def test_settings_are_read_by_name_and_a_wrong_name_is_refused():
    config = Config.from_env({"RUNTIME_GRACE": "3s", "RUNTIME_MAX_CONTAINERS": "7"})
    assert (config.grace, config.max_containers) == (timedelta(seconds=3), 7)
    with pytest.raises(ConfigError):
        Config.from_env({"RUNTIME_MAX_CONTAINER": "7"})
