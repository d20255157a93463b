"""The words of an agent without work to control, and their instants; and the end of an agent that finds no control."""

import itertools
import re

import httpx
import pytest
from tests.agent.control_harness import Control

from gleaner.agent.agent import REGISTER_AGAIN_S, REGISTER_FOR_S
from gleaner.agent.common.randomness import JITTER
from gleaner.agent.messages import ClaimRequest, Deregistration
from gleaner.control.queue import agents
from gleaner.control.queue.database import transaction

LONG_S = 3600.0


class Heard:
    """All that control is told, with the instant."""

    def __init__(self, control: Control) -> None:
        self.all: list[tuple[float, str, bytes]] = []
        handle = control.transport.handle_request

        def listen(request: httpx.Request) -> httpx.Response:
            at_s = round(control.clock.passed_s, 3)
            self.all.append((at_s, request.url.path.rpartition("/")[2], request.content))
            return handle(request)

        control.transport.handle_request = listen  # type: ignore[method-assign]

    def times_s(self, verb: str) -> list[float]:
        return [at_s for at_s, heard, _ in self.all if heard == verb]

    def last_words(self) -> Deregistration:
        return Deregistration.model_validate_json([body for _, verb, body in self.all if verb == "farewell"][-1])


@pytest.fixture
def heard(control: Control) -> Heard:
    return Heard(control)


def test_it_beats_and_claims_in_its_own_time_and_ends(control: Control, heard: Heard) -> None:
    assert control.live(control.agent("a1", lives_s=LONG_S, idle_s=60)) == 0
    assert heard.times_s("register") == [0]
    assert heard.times_s("beat")[:6] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert heard.times_s("claim")[:12] == [5.0 * number for number in range(12)]
    told = heard.last_words()
    assert told.reason == "no work"
    assert 60 <= told.ended_s - control.clock.began_s <= 60.5


def test_without_time_for_a_slice_it_asks_for_no_job_and_says_so(control: Control, heard: Heard) -> None:
    control.live(control.agent("a1", lives_s=200, shortest_slice_s=300))
    assert heard.times_s("claim") == []
    assert heard.last_words().reason == "no time for a slice of 300 s (shortest_slice_s in the agents' settings)"


def test_with_a_full_disk_it_asks_for_no_job_and_says_so(control: Control, heard: Heard) -> None:
    control.live(control.agent("a1", lives_s=LONG_S, idle_s=60, disk_reserve_mib=10**11))
    assert heard.times_s("claim") == []
    told = heard.last_words()
    assert told.fault, "or this node would be given one agent after another"
    assert told.ended_s < control.clock.began_s + 10, "control counts on its processors"
    folder = re.escape(str(control.folder))
    said = rf"no room for a job: {folder}\S* has \d+ MiB free.*, less than disk_reserve_mib \({10**11}\)"
    assert re.fullmatch(said, told.reason)


def test_it_says_in_each_claim_for_how_long_a_job_may_compute_there(control: Control, heard: Heard) -> None:
    agent = control.agent("a1", lives_s=LONG_S, idle_s=60)
    control.live(agent)
    asked = [(at_s, ClaimRequest.model_validate_json(body).left_s) for at_s, verb, body in heard.all if verb == "claim"]
    most_s = round(LONG_S - agent.settings.margin_s)
    assert [(round(at_s), left_s and round(left_s)) for at_s, left_s in asked] == [
        (5 * number, most_s - 5 * number) for number in range(len(asked))
    ]


def test_when_control_asks_it_to_vacate_it_ends_with_its_next_look_at_the_clock(control: Control, heard: Heard) -> None:
    def vacate() -> None:
        with transaction(control.state.engine) as db:
            agents.vacate(db, "a1")

    control.once(lambda: control.clock.passed_s >= 20, vacate)
    control.live(control.agent("a1", lives_s=LONG_S, idle_s=60))
    assert heard.last_words().reason == "control asked"
    assert 20 <= control.clock.passed_s <= 21.5


def test_where_it_finds_no_control_it_tries_again_with_jitter_and_gives_up_in_time(
    control: Control, heard: Heard
) -> None:
    control.go_away()
    assert control.live(control.agent("a1", lives_s=LONG_S)) == 1
    pauses_s = [after - before for before, after in itertools.pairwise(heard.times_s("register"))]
    assert len(set(pauses_s)) > 10
    assert all(abs(pause_s - REGISTER_AGAIN_S) <= JITTER * REGISTER_AGAIN_S + 0.01 for pause_s in pauses_s)
    assert REGISTER_FOR_S <= control.clock.passed_s <= REGISTER_FOR_S + 2 * REGISTER_AGAIN_S
