"""The user's page says nothing that does not work: its commands are run, its campaign file is submitted."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "user.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_command_of_the_users_page_works_in_order(harness: CliHarness) -> None:
    (harness.folder / "zmumu.yaml").write_text(blocks("yaml")[0])
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) > 15
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "glean"
        if arguments[0] in {"show", "wait"}:
            work(harness)
        harness.good(*arguments)
    names = {path.name for path in (harness.folder / "output" / "campaign-1").iterdir()}
    assert names == {f"zmumu-{index}" for index in range(1, 13)}
    assert (harness.folder / "output" / "job-13" / "result.txt").read_text() == "13"


def work(harness: CliHarness) -> None:
    """Run everything that waits."""
    for claimed in harness.node.claim():
        harness.node.write(claimed, 0, "start")
        harness.node.complete(claimed, files={"result.txt": str(claimed.job).encode()})


def test_the_numbers_in_the_users_page_are_those_that_the_program_prints(harness: CliHarness) -> None:
    (harness.folder / "zmumu.yaml").write_text(blocks("yaml")[0])
    assert harness.good("submit", "zmumu.yaml") == "campaign 1: jobs 1 to 12\n"
    assert "campaign 1: jobs 1 to 12" in PAGE
    harness.node.claim(most=3)
    printed = harness.good("status", "--campaign", "1").splitlines()
    assert [line.split() for line in printed] == [
        line.split() for line in PAGE.splitlines() if line.startswith(("NEW ", "9 "))
    ]


def test_every_verb_has_a_help_text_of_its_own(harness: CliHarness) -> None:
    listed = re.findall(r"^  ([a-z]+) +\S", harness.good("--help").partition("Commands:")[2], flags=re.MULTILINE)
    assert len(listed) == 26
    for verb in set(listed) - {"agent", "run"}:
        assert harness.good(verb, "--help").startswith("Usage: glean ")
