"""`glean image`: container images of one's own, for jobs of one's group."""

import hashlib
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from pydantic import TypeAdapter, ValidationError

from gleaner.agent.runtime.images import packed_layout
from gleaner.control.cli import render, sif
from gleaner.control.cli.client import Control, connect
from gleaner.control.cli.failures import BadInput, Conflict, Failure
from gleaner.control.cli.image_archive import NotAnImage, SavedImage, read
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.pieces import send_missing
from gleaner.control.cli.render import moment
from gleaner.control.input_errors import one_line
from gleaner.control.models.images import (
    EVERYBODY,
    ImageName,
    ImagePieceList,
    ImagePush,
    ImageRow,
    PieceList,
    SiteImages,
    dockers_word,
)
from gleaner.control.simulation.metrics.tables import Table, number

app = typer.Typer(no_args_is_help=True, help="Bring, list and remove your group's container images.")

BRING_S = 3600.0
"""The time for `docker save`, and for skopeo."""
_REGISTRY = "docker://"
TRIES = 3
"""A push of the same image by somebody else may end first, and take the pieces away: they are sent once more."""

Named = Annotated[str, typer.Argument(metavar="NAME", help="Your group's name for the image, as in pythia:8.3.")]
Group = Annotated[str | None, typer.Option(help="The group whose image it is; only an admin names one.")]


@app.command()
def push(
    name: Named,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A SIF file, an archive of `docker save`, an OCI layout, a name that Docker or Podman knows, or"
            " docker:// and a registry's name.",
        ),
    ],
    group: Group = None,
    architecture: Annotated[
        str | None, typer.Option(help="The nodes' kind of processor, amd64 or arm64.", show_default="this machine's")
    ] = None,
    as_json: AsJson = False,
) -> Answer:
    """Bring an image: the jobs of your group can use it by its name. A push that was interrupted goes on."""
    wanted, registry_image = _checked(name), _registry_image(source, group)
    found = architecture or dockers_word(platform.machine())
    with ExitStack() as opened:
        try:
            image = opened.enter_context(_image(source, found))
            with render.busy(f"reading {one_line(source)}"):
                pieces = tuple(f"sha256:{hashlib.sha256(piece).hexdigest()}" for piece in image.pieces())
        except NotAnImage as error:
            raise BadInput(one_line(f"{source}: {error}")) from error
        given = ImagePush(
            name=wanted,
            group=group,
            config=image.config,
            layers=image.layers,
            pieces=pieces,
            registry_image=registry_image,
        )
        with connect() as control:
            return _answer(_pushed(control, image, given), as_json=as_json)


@app.command("list")
def list_images(group: Group = None, as_json: AsJson = False) -> Answer:
    """List your group's images, and those that the nodes have."""
    with connect() as control:
        found, site = control.images(group), control.site_images()
    return Answer({"pushed": found, "site": site} if as_json else (_table(found), *_of_nodes(site)), as_json)


@app.command()
def show(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Show one image."""
    with connect() as control:
        return _answer(control.image(_checked(name), group), as_json=as_json)


@app.command()
def rm(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Remove an image. Refused while a job that has not ended needs it."""
    with connect() as control:
        return _answer(control.remove_image(_checked(name), group), as_json=as_json)


@app.command()
def publish(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Let all groups use a group's image; only for an admin."""
    with connect() as control:
        return _answer(control.publish_image(_checked(name), group), as_json=as_json)


@app.command()
def unpublish(name: Named, as_json: AsJson = False) -> Answer:
    """Take back an image that was published. Refused while a job that has not ended needs it."""
    with connect() as control:
        return _answer(control.unpublish_image(_checked(name)), as_json=as_json)


def _checked(name: str) -> str:
    try:
        return TypeAdapter[str](ImageName).validate_python(name)
    except ValidationError:
        raise BadInput(
            f"{one_line(name)!r} is no name for an image: small letters and digits, with . _ - within, and perhaps a"
            " tag, as in pythia:8.3"
        ) from None


def _registry_image(source: str, group: str | None) -> str | None:
    """Return the registry's name of the image, if the source is one. Control is asked first whether it takes it."""
    if not source.startswith(_REGISTRY):
        return None
    try:
        asked = ImagePieceList(pieces=(), group=group, registry_image=source.removeprefix(_REGISTRY))
    except ValidationError:
        raise BadInput(f"{one_line(source)!r}: after {_REGISTRY} comes a name, as in registry.site/pythia:8") from None
    with connect() as control:
        control.missing_pieces(asked)
    return asked.registry_image


def _pushed(control: Control, image: SavedImage, given: ImagePush) -> ImageRow:
    """Send what control lacks of the image, and have it stored."""
    changed = Failure("a piece of the image did not arrive as it was sent: push again, which goes on from here")
    for tries_left in reversed(range(TRIES)):
        send_missing(
            control, given.pieces, image.pieces(), of="image", group=given.group, what="sending", changed=changed
        )
        try:
            with render.busy("storing"):
                return control.push_image(given)
        except Conflict:
            is_lost = bool(control.missing_pieces(PieceList(pieces=given.pieces, group=given.group)))
            if not tries_left or not is_lost:
                raise
    raise AssertionError("the last try has returned or raised")


@contextmanager
def _image(source: str, architecture: str) -> Generator[SavedImage]:
    """Open the image. Raises `NotAnImage`."""
    path = Path(source)
    with ExitStack() as opened:
        is_sif = path.is_file() and sif.is_sif(path)
        archive = None if is_sif else opened.enter_context(_archive(path, source, architecture))
        with render.busy(f"reading {one_line(source)}"):
            if archive is None:
                image = opened.enter_context(sif.opened(path, architecture=architecture))
            else:
                image = read(archive, architecture=architecture)
        yield image


@contextmanager
def _archive(path: Path, source: str, architecture: str) -> Generator[BinaryIO]:
    """Open the archive of the image. A name is fetched by skopeo, or saved by Docker or Podman, first."""
    if path.is_file() or (path / "index.json").is_file():
        with ExitStack() as opened:
            try:
                file = opened.enter_context(path.open("rb") if path.is_file() else packed_layout(path))
            except (OSError, tarfile.TarError) as error:
                raise BadInput(one_line(f"{source}: {error}")) from error
            yield file
        return
    if path.suffix in {".sif", ".tar", ".gz", ".xz", ".zst"} or path.is_absolute():
        raise BadInput(one_line(f"{source}: no such file"))
    if source.startswith(_REGISTRY):
        with tempfile.TemporaryDirectory(prefix="gleaner-image-") as folder:
            made = Path(folder, "image.tar")
            _run("skopeo", *_fetch(source, architecture, made), does="fetch", source=source)
            with made.open("rb") as file:
                yield file
        return
    program = shutil.which("docker") or shutil.which("podman")
    if program is None or path.exists() or source.startswith("-"):
        raise BadInput(
            f"{one_line(source)} is no image in a file, no OCI layout, and no name that could be saved by Docker or"
            " Podman here: give an archive of `docker save`"
        )
    with tempfile.TemporaryFile() as file:
        _run(program, "save", source, does="save", source=source, stdout=file)
        yield file


def _fetch(source: str, architecture: str, to: Path) -> Sequence[str]:
    """Return the words by which skopeo fetches an image for our nodes, with the rights that the user has."""
    if shutil.which("skopeo") is None:
        raise BadInput(
            "an image in a registry is fetched by skopeo, which is not here: install skopeo, or push an archive of"
            " `docker save`"
        )
    return (
        "--override-os",
        "linux",
        "--override-arch",
        architecture,
        "copy",
        "--quiet",
        source,
        f"docker-archive:{to}",
    )


def _run(program: str, *words: str, does: str, source: str, stdout: BinaryIO | int = subprocess.DEVNULL) -> None:
    """Run a program that brings the image to this machine."""
    name = Path(program).name
    try:
        with render.busy(f"{name}: {does} {one_line(source)}"):
            subprocess.run(
                [program, *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                check=True,
                timeout=BRING_S,
            )
    except subprocess.TimeoutExpired:
        raise Failure(f"{name} did not {does} {one_line(source)} within {BRING_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip() or f"exit code {error.returncode}"
        raise BadInput(f"{name} does not {does} {one_line(source)}: {one_line(said)}") from None


def _of_nodes(site: SiteImages) -> Sequence[Table | str]:
    """Return what agents have reported of the nodes' images, for people."""
    when = "on the nodes:" if site.agents else "on the nodes, as the agents reported that ran last:"
    table = Table.of(site.images, {"IMAGE": "name", "NODES": "nodes"}, right=("NODES",), title=when)
    more = (f"the nodes also bring images that are called {' or '.join(site.brings)}",) if site.brings else ()
    return (table, *more)


def _answer(row: ImageRow, *, as_json: bool) -> Answer:
    return Answer(row if as_json else (_table((row,)),), as_json)


def _table(rows: Sequence[ImageRow]) -> Table:
    return Table.of(
        rows,
        {
            "IMAGE": "name",
            "GROUP": lambda row: "all" if row.group == EVERYBODY else row.group,
            "ID": lambda row: row.image_id.removeprefix("sha256:")[:12],
            "FOR": "architecture", "MIB": lambda row: number(row.size_bytes / 2**20, 0), "JOBS": "jobs",
            "PUSHED": lambda row: moment(row.pushed_s), "BY": "pusher",
        },
        right=("MIB", "JOBS"),
    )  # fmt: skip
