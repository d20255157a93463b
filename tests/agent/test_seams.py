"""The seams of an agent: its clock, its randomness, and its line to control, each replaced by a test's own.

A whole life of an agent takes no time here, and comes out the same each time.
"""

import asyncio
import itertools
import math
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agent.fake_clock import FakeClock
from tests.agent.pretended_runtime import PretendedRuntime

from gleaner.agent.agent import REGISTER_AGAIN_S, REGISTER_FOR_S, Agent
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.common.randomness import JITTER, Randomness
from gleaner.agent.messages import Assignments, ClaimRequest, Deregistration, Message, Orders, Registration, Welcome
from gleaner.agent.node.facts import node_facts
from gleaner.agent.reporting.client import ControlClient
from gleaner.agent.settings import SiteAgentSettings


class ControlInMemory:
    """Control as far as an agent sees it, without a network. What it hears it remembers, with the instant."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.heard: list[tuple[float, str, bytes]] = []
        self.is_away: Callable[[], bool] = lambda: False
        self.vacates_at_s = math.inf

    def answer(self, request: httpx.Request) -> httpx.Response:
        verb = request.url.path.rpartition("/")[2]
        self.heard.append((self.clock.passed_s, verb, request.content))
        if self.is_away():
            raise httpx.ConnectError("nobody is there")
        said: Message
        match verb:
            case "register":
                said = Welcome(heartbeat_s=10, lease_s=30)
            case "claim":
                said = Assignments()
            case "beat":
                said = Orders(vacate=self.clock.passed_s >= self.vacates_at_s)
            case _:
                return httpx.Response(204)
        return httpx.Response(200, text=said.model_dump_json())

    def times_s(self, verb: str) -> list[float]:
        return [round(at_s, 3) for at_s, heard, _ in self.heard if heard == verb]

    def last(self, verb: str) -> bytes:
        return [body for _, heard, body in self.heard if heard == verb][-1]


def an_agent(
    place: Path, clock: FakeClock, control: ControlInMemory, *, seed: int = 1, lives_s: float = 3600, **settings: Any
) -> Agent:
    runtime = PretendedRuntime(clock)
    (place / "work").mkdir(parents=True)
    storage = FolderStorage(place / "storage")
    storage.prepare()
    return Agent(
        name="a1",
        end_s=clock.now_s() + lives_s,
        slurm_job=None,
        settings=SiteAgentSettings(storage=place / "storage", work=place / "work", idle_s=60, **settings),
        client=ControlClient(
            urls=["http://control"],
            name="a1",
            token="secret",
            ca_file=None,
            timeout_s=1,
            transport=httpx.MockTransport(control.answer),
        ),
        runtime=runtime,
        storage=storage,
        facts=node_facts(runtime.facts(), cpus=4, memory_mib=1000),
        clock=clock,
        randomness=Randomness(random.Random(seed)),
    )


def test_an_agent_without_work_beats_and_claims_in_its_own_time_and_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    assert clock.run(an_agent(tmp_path, clock, control).live()) == 0
    assert control.times_s("register") == [0]
    assert control.times_s("beat")[:6] == [0, 10, 20, 30, 40, 50]
    assert control.times_s("claim")[:12] == [5.0 * number for number in range(12)]
    told = Deregistration.model_validate_json(control.last("farewell"))
    assert (told.reason, told.ended_s) == ("no work", clock.began_s + 60)


def test_an_agent_that_has_no_time_for_a_slice_asks_for_no_job_and_says_so(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    clock.run(an_agent(tmp_path, clock, control, lives_s=200).live())
    assert control.times_s("claim") == []
    reason = Deregistration.model_validate_json(control.last("farewell")).reason
    assert reason == "no time for a slice of 300 s (shortest_slice_s in the agents' settings)"


def test_an_agent_whose_disk_is_full_from_the_beginning_asks_for_no_job_and_says_so(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    clock.run(an_agent(tmp_path, clock, control, disk_reserve_mib=10**11).live())
    assert control.times_s("claim") == []
    told = Deregistration.model_validate_json(control.last("farewell"))
    assert told.fault, "or this node would be given one agent after another"
    assert told.ended_s < clock.began_s + 10, "control counts on its processors"
    said = (
        rf"no room for a job: {re.escape(str(tmp_path))}\S* has \d+ MiB free.*, less than disk_reserve_mib \({10**11}\)"
    )
    assert re.fullmatch(said, told.reason)


def test_an_agent_says_in_each_claim_for_how_long_a_job_may_compute_there(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    agent = an_agent(tmp_path, clock, control)
    clock.run(agent.live())
    asked = [(at_s, ClaimRequest.model_validate_json(body)) for at_s, verb, body in control.heard if verb == "claim"]
    margin_s = agent.settings.margin_s
    assert [(round(at_s), ask.left_s and round(ask.left_s)) for at_s, ask in asked] == [
        (5 * number, round(3600 - margin_s) - 5 * number) for number in range(len(asked))
    ]


def test_an_agent_that_control_asks_to_vacate_ends_with_its_next_look_at_the_clock(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    control.vacates_at_s = 20
    clock.run(an_agent(tmp_path, clock, control).live())
    assert Deregistration.model_validate_json(control.last("farewell")).reason == "control asked"
    assert 20 <= clock.passed_s <= 20.5


def test_an_agent_that_finds_no_control_tries_again_with_jitter_and_gives_up_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    control = ControlInMemory(clock)
    control.is_away = lambda: True
    assert clock.run(an_agent(tmp_path, clock, control).live()) == 1
    tried_s = control.times_s("register")
    pauses_s = [after - before for before, after in itertools.pairwise(tried_s)]
    assert len(set(pauses_s)) > 10
    assert all(abs(pause_s - REGISTER_AGAIN_S) <= JITTER * REGISTER_AGAIN_S + 0.01 for pause_s in pauses_s)
    assert REGISTER_FOR_S <= clock.passed_s <= REGISTER_FOR_S + 2 * REGISTER_AGAIN_S


@pytest.mark.parametrize(("seed", "is_same"), [(1, True), (2, False)])
def test_what_chance_decides_comes_out_the_same_with_the_same_seed(tmp_path: Path, seed: int, is_same: bool) -> None:
    tried_s: list[list[float]] = []
    for number, one in enumerate((1, seed)):
        clock = FakeClock()
        control = ControlInMemory(clock)
        control.is_away = lambda: True
        clock.run(an_agent(tmp_path / str(number), clock, control, seed=one).live())
        tried_s.append(control.times_s("register"))
    assert (tried_s[0] == tried_s[1]) is is_same


def test_a_registration_names_the_end_by_the_clock_that_was_passed_in(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1000.0)
    control = ControlInMemory(clock)
    clock.run(an_agent(tmp_path, clock, control, lives_s=500).live())
    assert Registration.model_validate_json(control.last("register")).end_s == 1500.0


def test_the_systems_clock_waits_as_long_as_it_is_told() -> None:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    clock.pause(0.02)
    asyncio.run(clock.sleep(0.02))
    assert clock.monotonic_s() - began_s >= 0.04


def test_a_thread_that_the_systems_clock_starts_can_be_waited_for() -> None:
    clock, event = SystemClock(), threading.Event()
    lock = clock.lock()

    def thread() -> None:
        with lock:
            event.set()

    with lock:
        clock.start(thread)
        assert not clock.wait(event, 0.01)
    assert clock.wait(event, 60)
