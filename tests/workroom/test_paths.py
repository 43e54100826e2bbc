import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workroom.paths import Home, UnusablePath, check_socket_path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_home_is_found_in_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert Home.from_env({}).root == Path("/home/ada/.local/share/workroom")
    assert Home.from_env({"XDG_DATA_HOME": "/data"}).root == Path("/data/workroom")
    assert Home.from_env({"XDG_DATA_HOME": "relative"}).root.is_relative_to("/home/ada")
    both = {"XDG_DATA_HOME": "/data", "WORKROOM_HOME": "/srv/wr"}
    assert Home.from_env(both).root == Path("/srv/wr")
    with pytest.raises(UnusablePath, match="WORKROOM_HOME=srv is not absolute"):
        Home.from_env({"WORKROOM_HOME": "srv"})


def test_every_folder_is_private(tmp_path):
    old = os.umask(0)
    try:
        home = Home(tmp_path / "deep" / "home").create()
    finally:
        os.umask(old)
    for folder in (home.root, home.run, home.db, home.spool, home.log):
        assert mode(folder) == 0o700
    assert home.create() == home


def test_opened_folder_is_closed_again(tmp_path):
    home = Home(tmp_path / "home").create()
    home.root.chmod(0o755)
    home.run.chmod(0o777)
    home.create()
    assert (mode(home.root), mode(home.run)) == (0o700, 0o700)


def test_folder_of_another_user_is_refused_with_the_cure(tmp_path):
    root = tmp_path / "home"
    root.mkdir()
    os.chown(root, 65534, 65534)
    with pytest.raises(UnusablePath, match="belongs to uid 65534.*WORKROOM_HOME"):
        Home(root).create()


def test_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(UnusablePath, match="not a folder"):
        Home(tmp_path / "home").create()


def test_home_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert Home(tmp_path / "home").create().run.is_dir()


def test_socket_path_of_107_bytes_is_the_longest():
    assert check_socket_path(Path("/" + "x" * 106))
    with pytest.raises(UnusablePath, match="108 bytes.*107.*WORKROOM_HOME"):
        check_socket_path(Path("/" + "x" * 107))
    with pytest.raises(UnusablePath):
        check_socket_path(Path("/" + "é" * 60))
    with pytest.raises(UnusablePath, match="shorter"):
        Home(Path("/" + "x" * 95)).socket("runtime")


def test_socket_lives_in_run(tmp_path):
    assert Home(tmp_path).socket("runtime") == tmp_path / "run" / "runtime.sock"


def test_installation_id_is_made_once(tmp_path):
    home = Home(tmp_path / "home").create()
    made = home.installation_id()
    assert made.startswith("inst_")
    assert len(made) == len("inst_") + 24
    assert Home(home.root).installation_id() == made
    assert mode(home.root / "installation_id") == 0o600


def test_racing_processes_get_one_id_and_leave_one_file(tmp_path):
    home = Home(tmp_path / "home").create()
    with ThreadPoolExecutor(16) as pool:
        ids = set(pool.map(lambda _: home.installation_id(), range(64)))
    assert len(ids) == 1
    assert [file.name for file in home.root.iterdir() if file.is_file()] == ["installation_id"]


def test_damaged_id_is_not_replaced(tmp_path):
    home = Home(tmp_path / "home").create()
    (home.root / "installation_id").write_text("")
    with pytest.raises(UnusablePath, match="does not hold an installation id"):
        home.installation_id()
