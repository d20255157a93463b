"""Images that groups push: a job keeps the image that its name meant at the submission, and what is needed stays."""

import pytest
from tests.queue.queue_harness import QueueHarness, digest

from gleaner.agent.messages import NodeImages
from gleaner.control.models.images import ImageRow
from gleaner.control.queue import images, queries, uploads
from gleaner.control.queue.errors import Conflict, Invalid, NotFound

OLD, NEW = digest(1), digest(2)


def put(
    harness: QueueHarness,
    image_id: str,
    *,
    name: str = "pythia:8.3",
    group: str = "physics",
    size: int = 100,
    **more: int,
) -> None:
    row = ImageRow(
        name=name,
        group=group,
        image_id=image_id,
        architecture="amd64",
        size_bytes=size,
        pushed_s=harness.now_s,
        pusher="alice",
        jobs=0,
    )
    limits = {"size_bytes": size, "group_bytes": more.get("group_bytes", 10**9)}
    harness.do(uploads.reserve, "images", group, image_id, **limits, now_s=harness.now_s)
    harness.do(images.put, row, digest=digest(int(image_id[-4:], 16) + 100))


def test_a_job_gets_the_image_that_its_group_has_pushed_under_the_name(harness: QueueHarness) -> None:
    put(harness, OLD)
    job = harness.job(image="pythia:8.3")
    given = harness.claim_one(harness.agent("a1"))
    assert (given.job, given.image) == (job, OLD)
    assert (given.spec.image, given.image_digest) == ("pythia:8.3", digest(101))
    detail = harness.look(queries.job_detail, job)
    assert (detail.spec.image, detail.image_id) == ("pythia:8.3", OLD)


def test_another_groups_image_and_another_tag_are_other_names(harness: QueueHarness) -> None:
    put(harness, OLD)
    put(harness, OLD, name="latest:latest")
    harness.job(image="pythia:8.3", group="chemistry")
    harness.job(image="pythia")
    harness.job(image="gleaner/pythia:8.3")
    harness.job(image="latest")
    given = harness.claim(harness.agent("a1"))
    assert [one.image for one in given] == ["pythia:8.3", "pythia", "gleaner/pythia:8.3", OLD]
    assert [one.image_digest is not None for one in given] == [False, False, False, True]


def test_a_job_goes_on_with_the_image_with_which_it_was_submitted(harness: QueueHarness) -> None:
    put(harness, OLD)
    job = harness.job(image="pythia:8.3")
    given = harness.claim_one(harness.agent("a1"))
    harness.record_save(job, given.attempt)
    put(harness, NEW)
    again = harness.claim_one(harness.agent("a2"))
    assert (again.job, again.image) == (job, OLD)
    assert again.checkpoint is not None
    assert again.image_digest == digest(101)
    harness.job(image="pythia:8.3")
    assert harness.claim_one(harness.agent("a3")).image == NEW


def test_an_image_stays_stored_while_a_name_or_an_unended_job_needs_it(harness: QueueHarness) -> None:
    put(harness, OLD)
    job = harness.job(image="pythia:8.3")
    put(harness, NEW)
    assert harness.look(images.stored_ids) == {OLD, NEW}
    given = harness.claim_one(harness.agent("a1"))
    harness.record_completion(job, given.attempt)
    put(harness, NEW)
    assert harness.look(images.stored_ids) == {NEW}
    put(harness, NEW, group="chemistry")
    harness.do(images.remove, "physics", "pythia:8.3")
    assert harness.look(images.stored_ids) == {NEW}
    harness.do(images.remove, "chemistry", "pythia:8.3")
    assert harness.look(images.stored_ids) == set()


def test_an_image_is_not_removed_while_an_unended_job_needs_it(harness: QueueHarness) -> None:
    put(harness, OLD)
    job = harness.job(image="pythia:8.3", retries=0)
    before = harness.everything()
    with pytest.raises(Conflict, match="1 unended job needs it"):
        harness.do(images.remove, "physics", "pythia:8.3")
    assert harness.everything() == before
    assert harness.look(images.row, "physics", "pythia:8.3").jobs == 1
    harness.record_completion(job, harness.claim_one(harness.agent("a1")).attempt)
    harness.do(images.remove, "physics", "pythia:8.3")
    with pytest.raises(NotFound, match=r"has no image pythia:8\.3"):
        harness.do(images.remove, "physics", "pythia:8.3")


MIB = 2**20
FOR_TWO = 2 * (MIB + uploads.FILES_BYTES)
"""The quota for two images of 1 MiB."""


def test_the_images_of_a_group_have_a_limit_together_and_the_same_content_counts_once(harness: QueueHarness) -> None:
    for name in ("pi:1", "again:1"):
        put(harness, OLD, name=name, size=MIB, group_bytes=FOR_TWO)
    before = harness.everything()
    with pytest.raises(Conflict, match="glean image rm"):
        put(harness, NEW, name="pi:1", size=MIB + 1, group_bytes=FOR_TWO)  # both are there until the name is given
    assert harness.everything() == before
    put(harness, NEW, group="chemistry", size=MIB + 1, group_bytes=FOR_TWO)
    put(harness, digest(3), name="again:1", size=MIB, group_bytes=FOR_TWO)


def test_an_image_that_only_unended_jobs_need_counts_for_their_group(harness: QueueHarness) -> None:
    jobs = []
    for image_id in (OLD, NEW):  # the name means the next one each time, and a held job keeps the one before
        put(harness, image_id, size=MIB, group_bytes=FOR_TWO)
        jobs.append(harness.job(image="pythia:8.3", hold=True))
    with pytest.raises(Conflict, match="wait for jobs to end"):
        put(harness, digest(3), size=MIB, group_bytes=FOR_TWO)
    harness.cancel(jobs[0])
    put(harness, digest(3), size=MIB, group_bytes=FOR_TWO)


def test_a_published_image_counts_for_no_group_whose_jobs_use_it(harness: QueueHarness) -> None:
    put(harness, OLD, size=2 * MIB)
    harness.do(images.publish, "physics", "pythia:8.3", by="root", now_s=harness.now_s)
    harness.job(image="pythia:8.3", group="chemistry", hold=True)
    put(harness, NEW, group="chemistry", size=MIB, group_bytes=FOR_TWO // 2)


def test_room_is_reserved_before_the_content_comes_and_free_again_a_while_after_the_last_part(
    harness: QueueHarness,
) -> None:
    def reserve(content: str, size: int = MIB) -> None:
        limits = {"size_bytes": size, "group_bytes": FOR_TWO}
        harness.do(uploads.reserve, "inputs", "physics", content, **limits, now_s=harness.now_s)

    reserve(OLD)
    harness.now_s += 10
    reserve(NEW)
    reserve(NEW)  # the next part
    with pytest.raises(Conflict, match="group_gib"):
        reserve(digest(3), 1)
    with pytest.raises(Conflict, match="group_gib"):
        reserve(NEW, MIB + 1)
    harness.do(uploads.remove_old, before_s=harness.now_s)
    reserve(digest(3))
    harness.do(uploads.release, "inputs", "physics", NEW)
    reserve(OLD)


def test_a_published_image_is_for_all_groups_and_a_groups_own_goes_before_it(harness: QueueHarness) -> None:
    put(harness, OLD)
    put(harness, NEW, group="chemistry")
    row = harness.do(images.publish, "physics", "pythia:8.3", by="root", now_s=harness.now_s)
    assert (row.group, row.image_id, row.pusher, row.jobs) == ("*", OLD, "root", 0)
    put(harness, digest(3), group="physics")  # what the group pushes later is its own affair
    given = []
    for group in ("biology", "chemistry", "physics"):
        harness.job(image="pythia:8.3", group=group)
        given.append(harness.claim_one(harness.agent(f"of-{group}")).image)
    assert given == [OLD, NEW, digest(3)]
    with pytest.raises(Conflict, match="1 unended job needs it"):
        harness.do(images.remove, "*", "pythia:8.3")
    assert harness.look(images.row, "*", "pythia:8.3").jobs == 1
    with pytest.raises(NotFound, match="no admin has published an image other:latest"):
        harness.do(images.remove, "*", "other")


def warning(harness: QueueHarness, image: str) -> str:
    return harness.do(images.check_exists, "physics", image)


def test_a_submission_is_refused_if_nobody_has_pushed_its_image_and_no_node_has_it_or_brings_it(
    harness: QueueHarness,
) -> None:
    put(harness, OLD)
    harness.agent("a1", images=NodeImages(names=("gleaner/pi:1", "gleaner/pi:2"), brings=()))
    harness.agent("a2", images=NodeImages(names=("gleaner/pi:1",), brings=("site.org/*",)))
    for here in ("pythia:8.3", "docker.io/gleaner/pi:2", "site.org/lab", "other.org/lab@sha256:0", OLD):
        assert warning(harness, here) == ""
    with pytest.raises(Invalid) as refused:
        warning(harness, "gleaner/pi")
    assert str(refused.value) == (
        "job.image: group physics has not pushed an image gleaner/pi, and no node has it: there are gleaner/pi:1,"
        " gleaner/pi:2, pythia:8.3 (`glean image list` shows all, `glean image push` brings one)"
    )
    site = harness.look(images.site_images)
    assert [(one.name, one.nodes) for one in site.images] == [("gleaner/pi:1", 2), ("gleaner/pi:2", 1)]
    assert (site.agents, site.brings) == (2, ("site.org/*",))


def test_where_no_agent_lives_the_image_is_taken_on_trust_with_a_warning(harness: QueueHarness) -> None:
    assert "has not pushed an image lab:1, and the agents that ran last had none: there is none" in warning(
        harness, "lab:1"
    )
    put(harness, OLD)
    assert warning(harness, "pythia:8.3") == ""
    harness.agent("a1", images=NodeImages(names=("gleaner/pi:1",), brings=()))
    harness.record_deregistration("a1")
    assert warning(harness, "gleaner/pi:1") == ""
    assert "had none: there are gleaner/pi:1, pythia:8.3" in warning(harness, "lab:1")
    harness.agent("a2", node="node-of-a1", images=NodeImages(names=("gleaner/pi:1",), brings=()))
    harness.record_deregistration("a2")
    site = harness.look(images.site_images)
    assert site.agents == 0
    assert [one.nodes for one in site.images] == [1], "a node counts once, however many agents ran there"
