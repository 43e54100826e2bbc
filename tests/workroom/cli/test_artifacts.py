"""Artifacts cannot be fetched to anywhere but below the chosen folder."""

from pathlib import Path

import pytest

from workroom.cli.artifacts import UnsafeArtifact, _make_parent, destination_of
from workroom.orchestrator.v1 import events_pb2


def test_an_artifact_goes_where_it_was_below_the_outputs(tmp_path):
    artifact = events_pb2.Artifact(path="/workspace/outputs/a/report.xlsx")
    assert destination_of(artifact, tmp_path) == tmp_path / "a" / "report.xlsx"


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/outputs",
        "/workspace/outputs/../secret",
        "/workspace/outputs/a/../../b",
        "/etc/passwd",
        "outputs/x",
        "",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(path, tmp_path):
    with pytest.raises(UnsafeArtifact):
        destination_of(events_pb2.Artifact(path=path), tmp_path)


def test_a_symbolic_link_below_the_folder_is_not_followed_out(tmp_path):
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "a").symlink_to(elsewhere)
    with pytest.raises(UnsafeArtifact):
        _make_parent(Path(folder / "a" / "x"), folder)
