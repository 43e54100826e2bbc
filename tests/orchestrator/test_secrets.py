"""The key that encrypts secrets, and what is refused of it."""

from pathlib import Path

import pytest

from orchestrator.errors import UnusableKeyFile
from orchestrator.secrets import Vault


def test_a_secret_comes_back_from_the_same_key_file(tmp_path: Path):
    path = tmp_path / "deep" / "key"
    sealed = Vault.open(path).seal("secret")
    assert "secret" not in sealed
    assert Vault.open(path).unseal(sealed) == "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_nothing_stays_nothing(tmp_path: Path):
    vault = Vault.open(tmp_path / "key")
    assert vault.unseal(vault.seal("")) == ""


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path):
    path = tmp_path / "key"
    Vault.open(path)
    path.chmod(0o640)
    with pytest.raises(UnusableKeyFile, match="chmod 600"):
        Vault.open(path)


def test_a_file_that_holds_no_key_is_refused(tmp_path: Path):
    path = tmp_path / "key"
    path.write_text("nonsense")
    path.chmod(0o600)
    with pytest.raises(UnusableKeyFile, match="holds no key"):
        Vault.open(path)


def test_another_key_opens_nothing(tmp_path: Path):
    sealed = Vault.open(tmp_path / "one").seal("secret")
    with pytest.raises(UnusableKeyFile, match="is not the one"):
        Vault.open(tmp_path / "other").unseal(sealed)
