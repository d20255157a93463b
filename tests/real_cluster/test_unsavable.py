"""A job that no node can save, for a reason in its own program, is held soon, and its owner reads what to do."""

import json
import re
from collections.abc import Iterator

import pytest
from demo import cluster, reference
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(900)]

SETTINGS = {"rounds": {"length_s": 45, "shortest_slice_s": 10}}
QUEUE = """
import ctypes, os, time
assert ctypes.CDLL(None).mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
while True:
    print("goes on", flush=True)
    time.sleep(1)
"""
REASON = "cannot be saved: it has /queue open, which lies on no disk of its container, as a POSIX message queue"


@pytest.fixture
def job(python_image: str) -> Iterator[int]:
    """One that holds a POSIX queue, on a cluster of which control knows several nodes."""
    others = cluster_harness.submit_pi(2)
    cluster_harness.wait_running(others)
    cluster.glean("cancel", *map(str, others))
    told = cluster.glean("submit", "--group", "physics", "--image", python_image, "--memory-mib", "200", after=(QUEUE,))
    yield told["jobs"][0]
    cluster.glean("cancel", str(told["jobs"][0]))


def checked(*words: str) -> tuple[int, dict[str, str]]:
    """Return the exit code and the answer of `glean check`."""
    script = 'glean check --group physics --json --after 3 "$@" >/tmp/checked; echo $?; cat /tmp/checked'
    code, _, told = cluster.run(
        "head", "sh", "-c", script, "sh", *words, user=cluster.SERVICE_USER, timeout_s=600
    ).partition("\n")
    return int(code), json.loads(told)


def test_a_check_says_so_and_why_long_before_the_end_of_the_slice(python_image: str) -> None:
    code, told = checked("--memory-mib", "200", python_image, "--", QUEUE)
    assert (code, told["verdict"]) == (1, "no")
    assert told["reason"].startswith(REASON)


def test_a_check_of_a_program_that_can_be_saved_says_how_it_went(quiet: None) -> None:
    long = ("--seed", "1", "--events", "100000", "--process", "zmumu", "--out", ".")
    code, told = checked("--memory-mib", "400", reference.IMAGE, "--", *long)
    assert (code, told["verdict"]) == (0, "yes")
    assert re.fullmatch(r"saved on node\d in .* s \(.*\), restored on node\d in .* s, saved again", told["reason"])


def test_it_is_held_after_two_nodes_have_said_so_and_the_hold_says_why(job: int) -> None:
    cluster.until("the job to be held", lambda: cluster_harness.job(job)["job"]["held"], timeout_s=400)
    shown = cluster_harness.job(job)
    tried = [attempt for attempt in shown["attempts"] if attempt["detail"].startswith(REASON)]
    assert len(tried) == len({attempt["node"] for attempt in tried}) == 2
    assert shown["waits_because"].startswith(f"held: {REASON}")
    assert "use a pipe or a Unix socket instead (CRIU: Can't lookup mount=" in shown["waits_because"]
    assert shown["failures"] == 0
