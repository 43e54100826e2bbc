"""What `workroom run` prints and fetches, for a person and for a program."""

import pytest

from tests.e2e.place import ended, script

pytestmark = [pytest.mark.docker, pytest.mark.timeout(90)]

REPORT = """
script: report
steps:
  - say: I write two files.
    calls:
      - name: shell
        arguments:
          commands:
            - command: mkdir -p outputs/sub && cat 'in put.csv' | tee outputs/sub/b.csv
            - command: printf 'a\\tb\\033[31m\\n' | tee outputs/a.txt; exit 4
  - answer: |
      The file says {{ find: 'x,\\d' }}.
"""


async def test_a_program_gets_json_lines_with_the_result_last(up):
    (up.root / "in put.csv").write_text("x,1\n")
    words = (
        "--json",
        "--script",
        script(up, REPORT),
        "--file",
        "in put.csv",
        "--out",
        "here/there",
    )
    done = await up.workroom("run", "hi", *words)
    assert done.code == 0, done.err
    assert done.result["answer"] == "The file says x,1.\n"
    assert done.result["turn"]["state"] == "STATE_COMPLETED"
    assert sorted(done.result["artifacts"]) == ["here/there/a.txt", "here/there/sub/b.csv"]
    assert (up.root / "here/there/sub/b.csv").read_text() == "x,1\n"
    numbers = [int(e["sequenceNumber"]) for e in done.lines[:-1] if "sequenceNumber" in e]
    assert numbers == list(range(1, len(numbers) + 1))
    assert "playing the script script.yaml" in done.err


async def test_a_person_sees_commands_output_answer_artifacts_and_usage(up):
    (up.root / "in put.csv").write_text("x,1\n")
    words = ("--script", script(up, REPORT), "--file", "in put.csv", "--out", "out")
    done = await up.workroom("run", "hi", *words)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "· no model: playing the script script.yaml"
    for line in (
        "I write two files.",
        "[1] $ mkdir -p outputs/sub && cat 'in put.csv' | tee outputs/sub/b.csv",
        "[1] x,1",
        "The file says x,1.",
        "artifact out/a.txt",
        "artifact out/sub/b.csv",
    ):
        assert line in lines
    assert any(line.startswith("[2] a\tb") for line in lines) and "\x1b" not in done.out
    assert any(line.startswith("[2] exit 4 after ") for line in lines)
    assert lines[-1].startswith("· 2 model calls, ")


async def test_a_kept_session_stays_until_it_is_deleted(up):
    (up.root / "in put.csv").write_text("x,1\n")
    words = ("--keep", "--json", "--script", script(up, REPORT), "--file", "in put.csv")
    done = await up.workroom("run", "hi", *words, "--out", "kept")
    assert done.code == 0 and len(await up.containers()) == 1
    await up.delete_session(done.result["sessionId"])
    assert not await up.containers()


async def test_who_reads_only_the_first_line_gets_no_traceback(up):
    process = await up.start("run", "hi", "--script", script(up, REPORT))
    assert process.stdout is not None
    await process.stdout.readline()
    process.stdout._transport.close()
    assert process.stderr is not None
    err = (await process.stderr.read()).decode()
    assert await process.wait() == 1
    assert "Traceback" not in err


async def test_a_read_only_out_folder_is_refused_before_the_work(place):
    words = ("--script", script(place, REPORT), "--out", "/proc/out")
    done = await place.workroom("run", "hi", *words)
    assert done.code == 1 and "--out" in done.err and "Traceback" not in done.err
    assert not place.home.exists()


async def test_an_artifact_that_cannot_be_written_is_an_error_and_the_rest_is_cleared(up):
    (up.root / "in put.csv").write_text("x,1\n")
    (up.root / "taken").mkdir()
    (up.root / "taken" / "sub").write_text("a file where a folder has to be")
    words = ("--script", script(up, REPORT), "--file", "in put.csv", "--out", "taken")
    done = await ended(await up.start("run", "hi", *words))
    assert done.code == 1 and "taken/sub" in done.err and "Traceback" not in done.err
    assert "The file says x,1." in done.out
