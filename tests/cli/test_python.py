"""`gleaner.client` as programs use it: the page's programs run, and both clients behave alike."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests import doc_pages
from tests.cli.cli_harness import CliHarness, free_port
from tests.cli.test_client import STATUS, repeat, server, token
from tests.privileged.waiting import wait_until

from gleaner.agent.messages import Assignment
from gleaner.client import AsyncClient, Client, ClientError, ErrorKind, JobSpec
from gleaner.client.steps import ItemVerb, Verb
from gleaner.client.verbs import Verbs
from gleaner.control.models.campaigns import CampaignStatus

PAGE = (doc_pages.ROOT / "docs" / "python.md").read_text()
CAMPAIGN, INPUT, ERRORS, ASYNC = doc_pages.blocks(PAGE, "python")
__all__ = ["token"]


def ask(url: str, *, is_async: bool) -> CampaignStatus:
    """Return the status by one of the clients."""
    if not is_async:
        return Client(url=url).status()
    return asyncio.run(AsyncClient(url=url).status())


def run(harness: CliHarness, program: str, *, jobs: int = 0) -> str:
    """Run a program of the page. Its jobs succeed, and each leaves a file. Return what it prints."""
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=harness.folder,
        env=os.environ | harness.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    claimed: list[Assignment] = []
    wait_until(lambda: claimed.extend(harness.node.claim()) or len(claimed) >= jobs, "the jobs are there")
    for one in claimed:
        harness.node.complete(one, files={"result.txt": str(one.job).encode()})
    printed, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    return printed


@pytest.mark.slow
def test_the_programs_of_the_page_do_what_it_says(harness: CliHarness) -> None:
    lines = [line for line in CAMPAIGN.splitlines() if line]
    assert len(lines) <= 15
    printed = run(harness, CAMPAIGN, jobs=12).splitlines()
    assert printed[-13] == "12 have succeeded, 0 have not ended"
    assert printed[-12:] == [f"output/zmumu-{index}: 1 files" for index in range(1, 13)]
    assert (harness.folder / "output" / "zmumu-3" / "result.txt").read_text() == "3"
    (harness.folder / "steering.cmnd").write_text("Beams:eCM = 8000.")
    assert run(harness, INPUT, jobs=1) == "(13,)\n"
    assert run(harness, ERRORS) == "there is no job 4711\n"
    assert run(harness, ASYNC, jobs=2) == "2 have succeeded\n"


def test_the_page_names_every_method() -> None:
    verbs = {name for name, each in vars(Verbs).items() if isinstance(each, Verb | ItemVerb)}
    named = {word for word in PAGE.replace("`", " ").replace(",", " ").split() if word in verbs}
    assert named == verbs


@pytest.mark.slow
def test_importing_the_client_loads_httpx_and_pydantic_only() -> None:
    names = "print(*sys.modules)"
    program = f"import sys, annotated_types, httpx, pydantic.main; {names}; import gleaner.client; {names}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    before, loaded = (set(line.split()) for line in done.stdout.splitlines())
    usual = {name.partition(".")[0] for name in before} | sys.stdlib_module_names | {"gleaner"}
    packages = {name.partition(".")[0] for name in loaded} - usual
    assert {name for name in packages if not name.startswith("_sysconfigdata")} == set()
    server = ("api", "campaigns", "cli", "control_state", "daemon", "queue", "settings", "simulation", "slurm", "web")
    assert {f"gleaner.control.{name}" for name in server} & loaded == set()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_next_address_is_asked_when_one_does_not_answer(
    is_async: bool, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLEANER_CLIENT__TIMEOUT_S", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent, server(repeat((200, json.dumps(STATUS)))) as (url, answered):
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert ask(f"http://127.0.0.1:{free_port()},{hanging},{url}", is_async=is_async).new == 0
    assert len(answered) == 1


def test_what_changes_something_goes_to_the_next_address_if_it_has_a_key_or_cannot_have_arrived(token: Path) -> None:
    good = (201, json.dumps({"campaign": None, "jobs": [7]}))
    job = JobSpec(name="pi", image="pi")
    with server(repeat(None)) as (breaks_off, _), server(repeat(good)) as (url, arrived):
        with Client(url=[f"http://127.0.0.1:{free_port()}", url]) as control:
            assert control.submit(job).jobs == (7,)
        with Client(url=[breaks_off, url]) as control, pytest.raises(ClientError) as raised:
            control.hold(7)
        assert len(arrived) == 1
        with Client(url=[breaks_off, url]) as control:
            assert control.submit(job).jobs == (7,)
    assert raised.value.is_away


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_has_controls_line_and_a_kind(is_async: bool, token: Path) -> None:
    with server(repeat((409, '{"detail": "job 5 has ended"}'))) as (url, _), pytest.raises(ClientError) as raised:
        ask(url, is_async=is_async)
    assert (str(raised.value), raised.value.kind, raised.value.status) == ("job 5 has ended", ErrorKind.CONFLICT, 409)
