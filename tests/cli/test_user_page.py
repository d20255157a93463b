"""The users' pages say nothing that does not work: their commands are run, their campaign file is submitted."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests import doc_pages
from tests.cli.cli_harness import GLEAN, CliHarness

from gleaner.agent.messages import Assignment

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text()
QUICK_START = (DOCS / "quickstart.md").read_text()
PAGES = (QUICK_START, *((DOCS / "user" / name).read_text() for name in ("campaigns.md", "scripts.md")))
"""The later pages go on from the earlier ones."""


def typed(page: str) -> list[tuple[str, str]]:
    """Return each command of a page's transcripts with the lines that are printed."""
    found = [
        part for block in doc_pages.blocks(page, "console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)
    ]
    return [(command, printed) for command, _, printed in (part.partition("\n") for part in found) if command]


def test_every_command_of_the_users_pages_works_in_order_and_prints_what_they_say(harness: CliHarness) -> None:
    assert type_all(harness, *PAGES) > 20
    names = {path.name for path in (harness.folder / "output" / "campaign-1").iterdir()}
    assert names == {f"zmumu-{index}" for index in range(1, 13)}
    (compare,) = (block for block in doc_pages.blocks(QUICK_START, "sh") if block.startswith("diff "))
    compared = subprocess.run(compare, shell=True, cwd=harness.folder, capture_output=True, text=True, check=False)
    assert compared.stdout == "the same\n"


def test_the_campaign_of_the_readme_is_the_demos_and_its_commands_print_what_it_shows(harness: CliHarness) -> None:
    """Lines that the page leaves out stand as `...`. As in the demo, the image lacks the third process."""
    (file,) = doc_pages.blocks(README, "yaml")
    assert (DOCS.parent / "demo" / "scan.yaml").read_text() == file
    (harness.folder / "scan.yaml").write_text(file)
    for command, printed in typed(README):
        _, *arguments = shlex.split(command)
        code, out, err = harness.run(*arguments)
        assert code == 0, (command, err)
        lines = [line.split() for line in out.splitlines()]
        assert [line for line in printed.splitlines() if line != "..." and line.split() not in lines] == [], out
        while arguments[0] in {"submit", "rerun"} and (jobs := harness.node.claim()):
            for claimed in jobs:
                lacks = "ttbar" in claimed.spec.command and claimed.spec.image == "lab:scan"
                if lacks:
                    known = "known are minbias, hardqcd, zmumu"
                    harness.node.write(claimed, 0, f"generate.py: unknown process 'ttbar'; {known}")
                harness.node.complete(claimed, exit_code=2 if lacks else 0, files={"result.txt": b"1"})
    assert len(list((harness.folder / "output" / "campaign-1").iterdir())) == 60


def test_the_grid_of_the_page_of_parameters_is_submitted_as_it_says(harness: CliHarness) -> None:
    page = (DOCS / "user" / "parameters.md").read_text()
    (harness.folder / "scan.yaml").write_text(doc_pages.blocks(page, "yaml")[0])
    ((command, printed),) = typed(page)
    _, out, _ = harness.run(*shlex.split(command)[1:])
    assert [line.split() for line in out.splitlines()] == [line.split() for line in printed.splitlines()]


def test_a_dry_run_takes_each_campaign_of_the_gallery(harness: CliHarness) -> None:
    page = "docs/user/gallery.md"
    (harness.folder / "table-v3").write_bytes(bytes(8))
    for name in ("steering.txt", "fit.py", "chain.py"):
        (harness.folder / name).write_text(doc_pages.shown_file(page, name) or "")
    campaigns = doc_pages.blocks((doc_pages.ROOT / page).read_text(), "yaml")
    assert len(campaigns) == 5
    for number, campaign in enumerate(campaigns):
        (harness.folder / f"{number}.yaml").write_text(campaign)
        assert "nothing was submitted" in harness.good("submit", f"{number}.yaml", "--dry-run")


def type_all(harness: CliHarness, *pages: str) -> int:
    """Type every command of the pages, with the first page's campaign file. Return the number of commands."""
    (harness.folder / "zmumu.yaml").write_text(doc_pages.blocks(pages[0], "yaml")[0])
    commands = [command for page in pages for command in typed(page)]
    begun: list[Assignment] = []
    for command, printed in commands:
        program, *arguments = shlex.split(command)
        assert program == "glean"
        if arguments[0] in {"show", "wait"}:
            work(harness, [*begun, *harness.node.claim()])
            begun.clear()
        if arguments[0] == "status":
            begun += harness.node.claim(most=3)
        answer = harness.good(*arguments)
        if printed.strip():
            assert [line.split() for line in answer.splitlines()] == [line.split() for line in printed.splitlines()]
    return len(commands)


def work(harness: CliHarness, jobs: Iterable[Assignment]) -> None:
    """Run these jobs to their end."""
    for claimed in jobs:
        harness.node.write(claimed, 0, "start")
        harness.node.complete(claimed, files={"result.txt": shlex.join(claimed.spec.command).encode()})


def test_the_failed_jobs_run_again_as_the_page_says(harness: CliHarness) -> None:
    (harness.folder / "zmumu.yaml").write_text(doc_pages.blocks(QUICK_START, "yaml")[0])
    harness.good("submit", "zmumu.yaml", "--retries", "0")
    for claimed in harness.node.claim():
        harness.node.complete(claimed, exit_code=1 if claimed.job in {3, 7, 9} else 0)
    ((command, printed),) = typed((DOCS / "user" / "troubleshooting.md").read_text())
    _, out, told = harness.run(*shlex.split(command)[1:])
    assert (out + told).split() == printed.split()
    again = json.loads(harness.good("list", "--campaign", "1", "--state", "new", "--json"))["jobs"]
    assert [row["index"] for row in again] == [3, 7, 9]


def test_every_verb_has_a_help_text_of_its_own_that_fits_its_line(harness: CliHarness) -> None:
    printed = harness.good("--help").partition("\nCommands:")[2].partition("\n  First steps:")[0]
    listed = re.findall(r"^  ([a-z]+) +\S", printed, flags=re.MULTILINE)
    assert len(listed) == 36
    pages = [printed, *(harness.good(verb, "--help") for verb in listed if verb != "run")]
    assert [page for page in pages[1:] if not page.startswith("Usage: glean ")] == []
    assert [line for page in pages for line in page.splitlines() if re.match(r"  [a-z]+ .*\.\.\.$", line)] == []


def test_glean_alone_says_what_a_newcomer_types_first(harness: CliHarness) -> None:
    code, printed, said = harness.run()
    assert (code, printed) == (2, "")
    commands = re.findall(r"^    glean ([a-z]+)", said, flags=re.MULTILINE)
    assert commands == ["check", "submit", "submit", "status", "why", "logs", "results"]


def test_the_shell_completes_commands_and_options(harness: CliHarness) -> None:
    for typed_so_far, completed in (("glean subm", "submit"), ("glean submit --im", "--image")):
        asked = {
            "_GLEAN_COMPLETE": "complete_bash",
            "COMP_WORDS": typed_so_far,
            "COMP_CWORD": str(typed_so_far.count(" ")),
        }
        answer = subprocess.run([GLEAN], env=os.environ | asked, capture_output=True, text=True, check=True, timeout=60)
        assert answer.stdout.split() == [completed]
