"""Container images that groups have pushed: their names, and the stored images that a name or a job still needs.

An image that an admin has published has a second name, in the group `*`. A group's own name takes precedence.

A job is submitted with an image's name and keeps the image that had the name at that time. Therefore a stored image
stays until no name refers to it and no unfinished job was submitted with it.
"""

from collections import Counter
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.sql import ColumnElement

from gleaner.agent.messages import NodeImages
from gleaner.agent.system.image_names import full_name, is_id, matches
from gleaner.control.models.images import EVERYBODY, ImageRow, SiteImage, SiteImages, dockers_word, tagged
from gleaner.control.queue import quota_checks, uploads
from gleaner.control.queue.errors import Conflict, Invalid, NotFound
from gleaner.control.queue.tables import AGENT, IMAGE, JOB, KIND, NODE, SPEC, STORED_IMAGE, Phase

LATEST = 20
"""The number of most recently ended agents whose reported images are shown if no agent is live."""
MOST_NAMED = 8
"""The number of existing images that a refusal lists, which are those with the most similar names."""


def pushed_id(db: Connection, group: str, image: str) -> str | None:
    """Return the id of the group's own image with this name, or of a published one. Return None if neither exists.

    The name refers to the same image until the transaction ends.
    """
    for whose in (group, EVERYBODY):
        named = select(IMAGE.c.image_id).where(_is(whose, image)).with_for_update(read=True)
        if (image_id := db.execute(named).scalar_one_or_none()) is not None:
            return str(image_id)
    return None


def rows(db: Connection, group: str | None, name: str | None = None) -> tuple[ImageRow, ...]:
    """Return the images of a group, or of all groups for None, sorted by name. With `name`, return only that image."""
    is_its = or_(JOB.c.group == IMAGE.c.group, IMAGE.c.group == EVERYBODY)
    jobs = (
        select(func.count())
        .select_from(JOB)
        .join(SPEC, SPEC.c.id == JOB.c.spec)
        .where(quota_checks.UNENDED, is_its, SPEC.c.image_id == IMAGE.c.image_id)
        .scalar_subquery()
    )
    stored = (STORED_IMAGE.c.architecture, STORED_IMAGE.c.size_bytes)
    wanted = (
        select(IMAGE, *stored, jobs.label("jobs"))
        .join_from(IMAGE, STORED_IMAGE, STORED_IMAGE.c.image_id == IMAGE.c.image_id)
        .order_by(IMAGE.c.name, IMAGE.c.group)
    )
    if group is not None:
        wanted = wanted.where(IMAGE.c.group == group)
    if name is not None:
        wanted = wanted.where(IMAGE.c.name == tagged(name))
    return tuple(ImageRow(**row) for row in db.execute(wanted).mappings())


def row(db: Connection, group: str, name: str) -> ImageRow:
    """Return the image. Raises `NotFound`."""
    found = rows(db, group, name)
    if not found:
        whose = "no admin has published an image" if group == EVERYBODY else f"group {group} has no image"
        raise NotFound(f"{whose} {tagged(name)}: `glean image list` shows what there is")
    return found[0]


def publish(db: Connection, group: str, name: str, *, by: str, now_s: float) -> ImageRow:
    """Publish a group's image under the same name for the jobs of all groups. Raises `NotFound`."""
    found = row(db, group, name)
    _name(db, found.model_copy(update={"group": EVERYBODY, "pusher": by, "pushed_s": now_s}))
    _forget_unneeded(db)
    return row(db, EVERYBODY, name)


def site_images(db: Connection) -> SiteImages:
    """Return the images that live agents have reported, and those that their nodes can pull.

    If no agent is live, `agents` is 0 and the images are those of the agents that ended last.
    """
    registered = select(AGENT.c.node, AGENT.c.facts).order_by(AGENT.c.registered_s.desc())
    live = db.execute(registered.where(AGENT.c.phase == Phase.LIVE)).all()
    known = live or db.execute(registered.where(AGENT.c.registered_s.is_not(None)).limit(LATEST)).all()
    latest = {node: facts for node, facts in reversed(known) if facts}
    reported = [NodeImages.model_validate(facts["images"]) for facts in latest.values()]
    nodes = Counter(name for node in reported for name in node.names)
    return SiteImages(
        agents=len(live),
        images=tuple(SiteImage(name=name, nodes=count) for name, count in sorted(nodes.items())),
        brings=tuple(sorted({pattern for node in reported for pattern in node.brings})),
    )


def check_exists(db: Connection, group: str, image: str) -> str:
    """Return a warning if the image seems to be missing but no live agent can confirm this, otherwise "".

    An image that is named by a digest or an id is not checked, because only a node can find it. Raises `Invalid` if the
    group has not pushed the image, and no live agent has it or can pull it.
    """
    if "@" in image or is_id(image) or pushed_id(db, group, image) is not None:
        return ""
    site = site_images(db)
    here = [one.name for one in site.images]
    if any(matches(image, pattern) for pattern in site.brings) or full_name(image) in map(full_name, here):
        return ""
    names = {row.name for row in (*rows(db, group), *rows(db, EVERYBODY))}.union(here)
    nearest = sorted(get_close_matches(image, names, n=MOST_NAMED, cutoff=0))
    there = f"there are {', '.join(nearest)}" if nearest else "there is none"
    if not site.agents:
        return (
            f"group {group} has not pushed an image {image}, and the agents that ran last had none: {there}."
            " The first agent will find out; if it is missing, the jobs are held: cancel them, and submit again"
        )
    raise Invalid(
        f"job.image: group {group} has not pushed an image {image}, and no node has it: {there}"
        " (`glean image list` shows all, `glean image push` brings one)"
    )


def architectures(db: Connection) -> frozenset[str]:
    """Return the architectures of the known nodes, under Docker's names for them."""
    found = db.execute(select(KIND.c.architecture).join_from(NODE, KIND, KIND.c.id == NODE.c.kind)).scalars()
    return frozenset(dockers_word(str(each)) for each in found)


def stored_ids(db: Connection) -> frozenset[str]:
    """Return the ids of all images that must be in the storage."""
    return frozenset(db.execute(select(STORED_IMAGE.c.image_id)).scalars())


def is_stored(db: Connection, image_id: str) -> bool:
    """Return True if the image is stored. It stays until the transaction has ended."""
    one = select(STORED_IMAGE.c.image_id).where(STORED_IMAGE.c.image_id == image_id)
    return db.execute(one.with_for_update(read=True)).first() is not None


def put(db: Connection, pushed: ImageRow, *, digest: str) -> None:
    """Make the name refer, in its group, to the image that was stored with this digest, instead of to the previous
    image."""
    if not db.execute(
        update(STORED_IMAGE).where(STORED_IMAGE.c.image_id == pushed.image_id).values(digest=digest)
    ).rowcount:
        facts = {"architecture": pushed.architecture, "size_bytes": pushed.size_bytes}
        db.execute(insert(STORED_IMAGE).values(image_id=pushed.image_id, digest=digest, **facts))
    _name(db, pushed)
    uploads.release(db, "images", pushed.group, pushed.image_id)
    _forget_unneeded(db)


def _name(db: Connection, image: ImageRow) -> None:
    """Make the name refer to this image in its group."""
    now: dict[str, Any] = {"image_id": image.image_id, "pushed_s": image.pushed_s, "pusher": image.pusher}
    if not db.execute(update(IMAGE).where(_is(image.group, image.name)).values(now)).rowcount:
        db.execute(insert(IMAGE).values(group=image.group, name=tagged(image.name), **now))


def remove(db: Connection, group: str, name: str) -> None:
    """Remove the name. Raises `NotFound`, and `Conflict` while an unfinished job of the group needs the image."""
    # The name is locked first, so that a concurrent submission waits, or is counted.
    db.execute(select(IMAGE.c.name).where(_is(group, name)).with_for_update())
    found = row(db, group, name)
    if found.jobs:
        need = "jobs need" if found.jobs > 1 else "job needs"
        line = f"{found.jobs} unended {need} it; wait for them, or cancel them"
        raise Conflict(f"image {found.name} cannot be removed: {line}")
    db.execute(delete(IMAGE).where(_is(group, name)))
    _forget_unneeded(db)


def _forget_unneeded(db: Connection) -> None:
    """Remove the rows of images that neither a name nor an unfinished job needs."""
    is_named = exists().where(IMAGE.c.image_id == STORED_IMAGE.c.image_id)
    is_used = exists(
        select(JOB.c.id)
        .join_from(JOB, SPEC, SPEC.c.id == JOB.c.spec)
        .where(quota_checks.UNENDED, SPEC.c.image_id == STORED_IMAGE.c.image_id)
    )
    unneeded = select(STORED_IMAGE.c.image_id).where(~is_named, ~is_used).with_for_update()
    some = db.execute(unneeded).scalars().all()  # locked first, so that the second check sees the changes of a rerun
    db.execute(delete(STORED_IMAGE).where(STORED_IMAGE.c.image_id.in_(some), ~is_named, ~is_used))


def _is(group: str, name: str) -> ColumnElement[bool]:
    return and_(IMAGE.c.group == group, IMAGE.c.name == tagged(name))
