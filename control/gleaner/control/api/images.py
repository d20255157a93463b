"""Container images that groups bring themselves: ask what is missing, send pieces, push, list, show, remove, publish.

All users of a group may push images and use each other's. An image's name may be given to another image, or removed, by
who has pushed it, a manager of the group, or an admin.
"""

from typing import Annotated

from fastapi import APIRouter, Body, HTTPException, Path, Query

from gleaner.agent.job_spec import Name
from gleaner.agent.runtime.images import matches
from gleaner.control.api import examples, image_uploads
from gleaner.control.api.access import Admin, Caller, User
from gleaner.control.api.caller_places import IN_TURN
from gleaner.control.api.image_uploads import Uploads
from gleaner.control.api.problems import documented
from gleaner.control.models.images import (
    EVERYBODY,
    PIECE_BYTES,
    ImageName,
    ImagePieceList,
    ImagePush,
    ImageRow,
    PieceMissing,
    PieceStored,
    SiteImages,
    tagged,
)
from gleaner.control.queue import images

router = APIRouter(prefix="/v1/images", tags=["images"])
site = APIRouter(prefix="/v1/site-images", tags=["images"])
uploads = APIRouter(prefix="/v1/image-uploads", tags=["images"])

Group = Annotated[Name | None, Query(description="The group; only an admin may name another than the own one")]
ImagePath = Annotated[ImageName, Path(description="The group's name for the image", examples=["pythia:8.3"])]
Piece = Annotated[bytes, Body(media_type="application/octet-stream", min_length=1, max_length=PIECE_BYTES)]


def group_of(caller: Caller, named: str | None) -> str:
    """Return the group whose images are meant."""
    group = named or caller.identity.group
    if group is None:
        raise HTTPException(422, "group: an admin's token has no group, so name the one whose image it is")
    if caller.group is not None and group != caller.group:
        raise HTTPException(403, f"this token is for the images of group {caller.group} only, not of {group}")
    return group


def _uploads(caller: Caller, named: str | None) -> Uploads:
    """Return the pieces of the group, if images may be pushed."""
    if not caller.state.settings.images.push:
        raise HTTPException(403, "this site takes no images from users ([images] push in control's settings)")
    caller.state.check_leads()
    return Uploads(caller.state.settings.storage.folder, group_of(caller, named))


@router.get("", responses=documented(422))
def list_images(caller: User, group: Group = None) -> tuple[ImageRow, ...]:
    """Return the images of the caller's group and the published ones; for an admin, those of all groups or of one."""
    only = group_of(caller, group) if group is not None or caller.group is not None else None
    with caller.reading() as db:
        return images.rows(db, only) + (() if only is None else images.rows(db, EVERYBODY))


@site.get("", responses=documented())
def list_site_images(caller: User) -> SiteImages:
    """Return the images that live agents have, and those that their nodes can bring."""
    with caller.reading() as db:
        return images.site_images(db)


@router.get("/{image}", responses=documented(404, 422))
def show(caller: User, image: ImagePath, group: Group = None) -> ImageRow:
    """Return one image: the group's own, or else the published one."""
    whose = group_of(caller, group)
    with caller.reading() as db:
        published = () if images.rows(db, whose, image) else images.rows(db, EVERYBODY, image)
        return published[0] if published else images.row(db, whose, image)


@router.delete("/{image}", dependencies=[IN_TURN], responses=documented(404, 409, 422))
def remove(caller: User, image: ImagePath, group: Group = None) -> ImageRow:
    """Remove an image. Refused while a job that has not ended needs it."""
    whose = group_of(caller, group)
    state = caller.state
    with state.images_turn, caller.writing() as db:
        found = images.row(db, whose, image)
        caller.may_change(f"image {found.name}", group=whose, submitter=found.pusher)
        images.remove(db, whose, image)
    caller.about.append(f"group {whose}, image {found.name}")
    return found


@router.post("/{image}/publish", dependencies=[IN_TURN], responses=documented(404, 422))
def publish(caller: Admin, image: ImagePath, group: Group = None) -> ImageRow:
    """Let the jobs of all groups use a group's image by its name. A later push of the group does not change it."""
    whose = group_of(caller, group)
    with caller.state.images_turn, caller.writing() as db:
        found = images.publish(db, whose, image, by=caller.identity.name, now_s=caller.now_s)
    caller.about.append(f"group {whose}, image {found.name}, {found.image_id}")
    return found


@router.post("/{image}/unpublish", dependencies=[IN_TURN], responses=documented(404, 409, 422))
def unpublish(caller: Admin, image: ImagePath) -> ImageRow:
    """Take an image back that was published. Refused while a job that has not ended needs it."""
    with caller.state.images_turn, caller.writing() as db:
        found = images.row(db, EVERYBODY, image)
        images.remove(db, EVERYBODY, image)
    caller.about.append(f"image {found.name}")
    return found


@uploads.post("/missing", responses=documented(413, 422))
def missing(caller: User, wanted: Annotated[ImagePieceList, examples.A_PIECE_LIST]) -> PieceMissing:
    """Return the pieces that control lacks: a push that was interrupted goes on with them."""
    _check_registry(caller, wanted.registry_image)
    return PieceMissing(missing=_uploads(caller, wanted.group).missing(wanted.pieces, now_s=caller.now_s))


@uploads.post("/pieces", status_code=201, responses=documented(409, 413, 422, 502))
def add_piece(caller: User, content: Piece, group: Group = None) -> PieceStored:
    """Take one piece of an image, and return the digest of what arrived."""
    at_most_bytes = caller.state.settings.images.largest_bytes
    return PieceStored(digest=_uploads(caller, group).add(content, at_most_bytes=at_most_bytes))


@router.post("", status_code=201, dependencies=[IN_TURN], responses=documented(409, 413, 422, 502))
def push(caller: User, pushed: Annotated[ImagePush, examples.AN_IMAGE_PUSH]) -> ImageRow:
    """Store an image whose pieces are all here, and give it its name in the group."""
    state, sent, group = caller.state, _uploads(caller, pushed.group), group_of(caller, pushed.group)
    _check_registry(caller, pushed.registry_image)
    limits, name = state.settings.images, tagged(pushed.name)
    if pushed.size_bytes > limits.largest_bytes:
        said = f"{pushed.size_bytes / 2**30:.3g} GiB, and may have {limits.largest_gib:.3g} ([images] largest_gib)"
        raise HTTPException(413, f"the image has {said}")
    row = ImageRow(
        name=name,
        group=group,
        image_id=pushed.image_id,
        architecture=image_uploads.architecture_of(pushed),
        size_bytes=pushed.size_bytes,
        pushed_s=caller.now_s,
        pusher=caller.identity.name,
        jobs=0,
    )
    with state.images_turn:
        with caller.reading() as db:
            _check_may_push(caller, images.rows(db, group, name))
            images.check_room(db, row, group_bytes=limits.group_bytes)
            known = images.architectures(db)
        if known and row.architecture not in known:
            raise HTTPException(
                422, f"the image is for {row.architecture}, and the nodes here are {' or '.join(sorted(known))}"
            )
        digest = image_uploads.store(state.storage, pushed, sent.read(pushed.pieces))
        with caller.writing() as db:
            _check_may_push(caller, images.rows(db, group, name))
            images.put(db, row, digest=digest, group_bytes=limits.group_bytes)
            answer = images.row(db, group, name)
        sent.remove(pushed.pieces)
    whence = f", from {pushed.registry_image}" if pushed.registry_image else ""
    caller.about.append(f"group {group}, image {name}, {pushed.image_id}{whence}")
    return answer


def _check_registry(caller: Caller, image: str | None) -> None:
    """Raise 403 if the client says that it fetches the image from a registry that the site does not name."""
    allowed = caller.state.settings.images.registries
    if image is None or any(matches(image, pattern) for pattern in allowed):
        return
    what = f"only {', '.join(allowed)}" if allowed else "none"
    raise HTTPException(
        403, f"of images in registries this site takes {what} ([images] registries in control's settings), not {image}"
    )


def _check_may_push(caller: Caller, there: tuple[ImageRow, ...]) -> None:
    """Raise 403 unless the caller may give the name to another image than it means now."""
    for row in there:
        caller.may_change(f"image {row.name}", group=row.group, submitter=row.pusher)
