"""The container images that groups push. Routes push, list, show, remove and publish them.

All users of a group can push images and use the images of the others. The user who has pushed an image, a manager of
the group, and an admin can give its name to another image, or remove the name.
"""

from typing import Annotated, BinaryIO

from fastapi import APIRouter, HTTPException, Path

from gleaner.agent.runtime.images import IMAGE_PART, image_key
from gleaner.agent.system import image_archive, tar_pack
from gleaner.agent.system.tar_policy import Hostile
from gleaner.control.api import examples
from gleaner.control.api.access import Admin, Caller, User
from gleaner.control.api.problems import documented
from gleaner.control.api.storage_threads import STORES
from gleaner.control.api.uploads import Group, Upload, store, whole_digest
from gleaner.control.models.base import replaced
from gleaner.control.models.images import (
    EVERYBODY,
    ImageName,
    ImagePush,
    ImageRow,
    SiteImages,
    registry_refusal,
    tagged,
)
from gleaner.control.queue import images

router = APIRouter(prefix="/v1/images", tags=["images"])
MOST_LETTERS = 20
"""The maximum length of an architecture's name."""
site = APIRouter(prefix="/v1/site-images", tags=["images"])

ImagePath = Annotated[ImageName, Path(description="The group's name for the image", examples=["pythia:8.3"])]


@router.get("", responses=documented(422))
def list_images(caller: User, group: Group = None) -> tuple[ImageRow, ...]:
    """Return the images of the caller's group and the published ones. Admins see the images of all groups, or of one
    group."""
    only = caller.acts_for(group) if group is not None or caller.group is not None else None
    with caller.reading() as db:
        return images.rows(db, only) + (() if only is None else images.rows(db, EVERYBODY))


@site.get("", responses=documented())
def list_site_images(caller: User) -> SiteImages:
    """Return the images that live agents have, and those that their nodes can pull."""
    with caller.reading() as db:
        return replaced(images.site_images(db), registries=caller.state.settings.images.registries)


def image_names(caller: Caller) -> list[str]:
    """Return the names of the images that the nodes have or that were pushed for the caller, in order."""
    here = {image.name for image in list_site_images(caller).images}
    return sorted(here | {image.name for image in list_images(caller)})


@router.get("/{image}", responses=documented(404, 422))
def show(caller: User, image: ImagePath, group: Group = None) -> ImageRow:
    """Return one image, the group's own one or otherwise the published one."""
    whose = caller.acts_for(group)
    with caller.reading() as db:
        published = () if images.rows(db, whose, image) else images.rows(db, EVERYBODY, image)
        return published[0] if published else images.row(db, whose, image)


@router.delete("/{image}", responses=documented(404, 409, 422))
def remove(caller: User, image: ImagePath, group: Group = None) -> ImageRow:
    """Remove an image. The request is refused while an unended job needs it."""
    whose = caller.acts_for(group)
    with caller.writing() as db:
        found = images.row(db, whose, image)
        caller.may_change(f"image {found.name}", group=whose, submitter=found.pusher)
        images.remove(db, whose, image)
    caller.about.append(f"group {whose}, image {found.name}")
    return found


@router.post("/{image}/publish", responses=documented(404, 422))
def publish(caller: Admin, image: ImagePath, group: Group = None) -> ImageRow:
    """Let the jobs of all groups use a group's image by its name. A later push by the group does not change it."""
    whose = caller.acts_for(group)
    with caller.writing() as db:
        found = images.publish(db, whose, image, by=caller.name, now_s=caller.now_s)
    caller.about.append(f"group {whose}, image {found.name}, {found.image_id}")
    return found


@router.post("/{image}/unpublish", responses=documented(404, 409, 422))
def unpublish(caller: Admin, image: ImagePath) -> ImageRow:
    """Withdraw a published image. The request is refused while an unended job needs it."""
    with caller.writing() as db:
        found = images.row(db, EVERYBODY, image)
        images.remove(db, EVERYBODY, image)
    caller.about.append(f"image {found.name}")
    return found


@router.post("", status_code=201, responses=documented(409, 413, 422, 502))
@STORES
def push(caller: User, pushed: Annotated[ImagePush, examples.AN_IMAGE_PUSH]) -> ImageRow:
    """Store an image that has been uploaded completely, and give it its name in the group."""
    state, sent = caller.state, Upload(caller, "images", pushed.image_id, pushed.group, pushed.size_bytes)
    name, key, registries = tagged(pushed.name), image_key(pushed.image_id), state.settings.images.registries
    with sent.opened() as file:
        if pushed.registry_image and (why := registry_refusal(pushed.registry_image, registries)):
            raise HTTPException(403, why)
        image = _image(file, pushed.image_id)
        row = ImageRow(
            name=name,
            group=sent.group,
            image_id=image.id,
            architecture=image.architecture,
            size_bytes=pushed.size_bytes,
            pushed_s=caller.now_s,
            pusher=caller.name,
            jobs=0,
        )
        with caller.reading() as db:
            _check_may_push(caller, images.rows(db, sent.group, name))
            known = images.architectures(db)
        if known and row.architecture not in known:
            raise HTTPException(
                422, f"the image is for {row.architecture}, and the nodes here are {' or '.join(sorted(known))}"
            )
        files = image_archive.stored(image, [layer.size for layer in image.layers], {})
        whole = whole_digest(state.storage, key, IMAGE_PART)
        digest = store(state.storage, key, IMAGE_PART, tar_pack.pack_files(files), whole=whole)
        with caller.writing() as db:
            _check_may_push(caller, images.rows(db, sent.group, name))
            images.put(db, row, digest=digest)
            answer = images.row(db, sent.group, name)
    sent.remove()
    whence = f", from {pushed.registry_image}" if pushed.registry_image else ""
    caller.about.append(f"group {sent.group}, image {name}, {pushed.image_id}{whence}")
    return answer


def _image(file: BinaryIO, image_id: str) -> image_archive.ArchivedImage:
    """Return the uploaded image. Raises `Hostile` if it is not the one that was announced."""
    image = image_archive.find(file, architecture="")
    if image.id != image_id:
        raise Hostile(f"it is the image {image.id}")
    if not image.architecture.isalnum() or len(image.architecture) > MOST_LETTERS:
        raise Hostile("only images for a known architecture can run here")
    return image


def _check_may_push(caller: Caller, there: tuple[ImageRow, ...]) -> None:
    """Raise 403 unless the caller is allowed to give the name to another image."""
    for row in there:
        caller.may_change(f"image {row.name}", group=row.group, submitter=row.pusher)
