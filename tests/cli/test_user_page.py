"""The user's page says nothing that does not work: its commands are run, its campaign file is submitted."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.desk import Desk

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "user.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_command_of_the_users_page_works_in_order(desk: Desk) -> None:
    (desk.folder / "zmumu.yaml").write_text(blocks("yaml")[0])
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) > 15
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "glean"
        if arguments[0] in {"show", "wait"}:
            work(desk)
        desk.good(*arguments)
    names = {path.name for path in (desk.folder / "output" / "campaign-1").iterdir()}
    assert names == {f"zmumu-{index}" for index in range(12)}
    assert (desk.folder / "output" / "job-13" / "result.txt").read_text() == "13"


def work(desk: Desk) -> None:
    """Run everything that waits."""
    for claimed in desk.node.claim():
        desk.node.write(claimed, 0, "start")
        desk.node.complete(claimed, files={"result.txt": str(claimed.job).encode()})


def test_the_numbers_in_the_users_page_are_those_that_the_program_prints(desk: Desk) -> None:
    (desk.folder / "zmumu.yaml").write_text(blocks("yaml")[0])
    assert desk.good("submit", "zmumu.yaml") == "campaign 1: jobs 1 to 12\n"
    assert "campaign 1: jobs 1 to 12" in PAGE
    desk.node.claim(most=3)
    printed = desk.good("status", "--campaign", "1").splitlines()
    assert [line.split() for line in printed] == [
        line.split() for line in PAGE.splitlines() if line.startswith(("NEW ", "9 "))
    ]


def test_every_verb_has_a_help_text_of_its_own(desk: Desk) -> None:
    listed = re.findall(r"^  ([a-z]+) +\S", desk.good("--help").partition("Commands:")[2], flags=re.MULTILINE)
    assert len(listed) == 25
    for verb in set(listed) - {"agent", "run"}:
        assert desk.good(verb, "--help").startswith("Usage: glean ")
