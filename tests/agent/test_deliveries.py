"""An agent delivers the results that control offers: those that count, in whole, and not beyond its own end."""

import threading
from pathlib import Path

from tests.agent.control_harness import Control, job_spec

from gleaner.agent.job_spec import OutputSpec
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.models.jobs import JobDetail
from gleaner.control.models.outputs import DeliveryPhase
from gleaner.control.queue import deliveries, jobs
from gleaner.control.queue.database import transaction
from gleaner.control.settings import OutputSettings


def site(control: Control) -> Path:
    """Let the site allow a folder for results; return it."""
    folder = control.folder / "results" / "physics"
    folder.mkdir(parents=True)
    outputs = OutputSettings(urls=(f"file://{folder.parent}/{{group}}/",))
    control.state.settings = control.state.settings.model_copy(update={"outputs": outputs})
    return folder


def submit(control: Control, folder: Path, *command: str) -> int:
    url = f"file://{folder}/"
    wanted = job_spec(*command)
    outputs = OutputSpec(to=f"{url}{{job}}/")
    wanted = wanted.model_copy(update={"job": wanted.job.model_copy(update={"outputs": outputs})})
    rules = jobs.SubmissionRules(0, targets=(url,))
    with transaction(control.state.engine) as db:
        return jobs.submit(db, wanted, group="physics", rules=rules, now_s=control.now_s).jobs[0]


def phase(detail: JobDetail) -> DeliveryPhase | None:
    return None if detail.delivery is None else detail.delivery.phase


def test_an_agent_delivers_what_its_job_has_left_before_it_ends_for_lack_of_work(control: Control) -> None:
    folder = site(control)
    job = submit(control, folder, "5")
    assert control.live(control.agent("a", lives_s=60, idle_s=2.0)) == 0
    detail = control.job(job)
    assert phase(detail) is DeliveryPhase.DELIVERED, detail.delivery
    assert detail.delivery is not None
    assert detail.delivery.tries == 1
    found = {path.name for path in (folder / str(job)).iterdir()}
    assert f"job-{job}.sha256" in found
    assert len(found) == (detail.delivery.files or 0) + 1


def test_an_agent_that_ends_gives_a_delivery_up_at_once_and_the_next_one_delivers(control: Control) -> None:
    folder = site(control)
    job = submit(control, folder, "5")
    first = control.agent("a", lives_s=60, idle_s=2.0)
    begun = threading.Event()

    def hang(_delivery: Delivery, stop: threading.Event) -> DeliveryReport | None:
        begun.set()
        while not control.clock.wait(stop, 1.0):
            pass
        return None

    first.deliveries.deliver = hang
    control.once(begun.is_set, lambda: control.end_soon(first))
    assert control.live(first) == 0
    assert control.now_s <= first.end_s
    assert control.live(control.agent("b", lives_s=60, idle_s=2.0)) == 0
    detail = control.job(job)
    assert (phase(detail), detail.delivery and detail.delivery.tries) == (DeliveryPhase.DELIVERED, 2)


def test_the_end_of_a_delivery_is_reported_also_when_control_stays_away(control: Control) -> None:
    folder = site(control)
    job = submit(control, folder, "5")
    agent = control.agent("a", lives_s=100, idle_s=2.0)

    def deliver(delivery: Delivery, _stop: threading.Event) -> DeliveryReport:
        control.go_away()
        return DeliveryReport(job=delivery.job, number=delivery.number, failed="full", may_pass=False)

    agent.deliveries.deliver = deliver
    assert control.live(agent) == 0
    assert take_spooled_reports(control.state, control.now_s) == 2, "this one, and the agent's deregistration"
    detail = control.job(job)
    assert detail.delivery is not None
    assert (detail.delivery.phase, detail.delivery.problem) == (DeliveryPhase.FAILED, "full")
    assert [event.detail for event in detail.events if event.what == deliveries.NOT_DELIVERED] == ["full"]
