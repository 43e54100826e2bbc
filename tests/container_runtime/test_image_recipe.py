import io
import tarfile
from dataclasses import replace

import pytest

from container_runtime.image.recipe import FILES, load_recipe


@pytest.mark.parametrize("name", FILES)
def test_recipe_finds_its_files_in_the_package(name):
    recipe = load_recipe(name)

    assert f"AS {name}".encode() in recipe.files["Dockerfile"]
    assert all(recipe.files[file] for file in FILES[name])


def test_digest_is_the_same_every_time():
    assert load_recipe("base").digest == load_recipe("base").digest


def test_digest_changes_with_everything_that_decides_the_image():
    recipe = load_recipe("base")
    changed = [
        replace(recipe, name="full"),
        replace(recipe, base_image="debian:trixie-slim"),
        *(replace(recipe, files={**recipe.files, file: b"other"}) for file in FILES["base"]),
    ]

    assert len({recipe.digest, *(other.digest for other in changed)}) == len(changed) + 1


def test_base_is_not_rebuilt_for_what_only_full_holds():
    assert "full.txt" not in load_recipe("base").files
    assert "full.txt" in load_recipe("full").files


def test_context_is_equal_bytes_for_equal_input_so_that_the_build_cache_hits():
    recipe = load_recipe("base")

    assert recipe.context({"pip.conf": b"x"}) == recipe.context({"pip.conf": b"x"})


def test_context_keeps_the_machines_files_apart():
    with tarfile.open(fileobj=io.BytesIO(load_recipe("base").context({"ca.pem": b"x"}))) as packed:
        assert sorted(packed.getnames()) == ["Dockerfile", "base.txt", "machine/ca.pem"]


def test_only_stages_that_are_thrown_away_see_the_machines_files():
    stages = load_recipe("base").files["Dockerfile"].decode().split("\nFROM ")

    using = [stage.split("\n")[0].split()[-1] for stage in stages if "machine/" in stage]

    assert using == ["python-packages", "full-python-packages"]
    assert not set(using) & set(FILES)
