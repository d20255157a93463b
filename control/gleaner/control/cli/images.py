"""`glean image`, which manages the container images that users bring for the jobs of their group."""

import platform
import shutil
import subprocess
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Annotated, BinaryIO

import typer
from pydantic import TypeAdapter, ValidationError

from gleaner.agent.runtime.images import packed_layout
from gleaner.agent.system import image_archive, openat, tar_pack
from gleaner.agent.system.tar_policy import Hostile
from gleaner.client import ClientError, ErrorKind
from gleaner.client.uploads import FileToSend
from gleaner.control.cli import render, sif
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, CliError
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.input_errors import one_line
from gleaner.control.models.images import (
    EVERYBODY,
    ImageName,
    ImageRow,
    RegistryImage,
    SiteImages,
    dockers_word,
    registry_refusal,
)
from gleaner.control.models.uploads import MOST_BYTES
from gleaner.control.simulation.metrics.tables import Table, number

app = typer.Typer(no_args_is_help=True, help="Push, list and remove your group's container images.")

BRING_S = 3600.0
"""The time limit for `docker save`, and for skopeo."""
_REGISTRY = "docker://"
_LARGEST_WINDOW = 128 * 2**20
"""The memory limit for one zstd layer. The output of `zstd` itself needs no more."""

Named = Annotated[str, typer.Argument(metavar="NAME", help="Your group's name for the image, as in pythia:8.3.")]
Group = Annotated[str | None, typer.Option(help="For admins: the group to which the image belongs.")]


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
    *,
    group: Group = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            help="The nodes' kind of processor: amd64, arm64, or a variant, as in amd64/v3.",
            show_default="this machine's",
        ),
    ] = None,
    image: Annotated[str, typer.Option(help="The name of one image, if an archive has several.")] = "",
    as_json: AsJson = False,
) -> Answer:
    """Push an image, so that your group's jobs can use it. An interrupted push is continued."""
    wanted, registry_image = _checked(name), _registry_image(source)
    try:
        with _image(source, architecture or dockers_word(platform.machine()), image) as found:
            with render.busy(f"reading {one_line(source)}"):
                sizes = image_archive.check(found, image_archive.policy_of(MOST_BYTES), DECOMPRESSORS)

            def files() -> list[tar_pack.File]:
                return image_archive.stored(found, sizes, DECOMPRESSORS)

            size_bytes = tar_pack.packed_bytes(files())
            upload = FileToSend("images", found.id, size_bytes, lambda: tar_pack.pack_files(files()), wanted)
            with connect() as control, render.sending() as on_part:
                row = control.push_image(wanted, upload, group=group, registry_image=registry_image, on_part=on_part)
    except Hostile as error:
        raise BadInput(one_line(f"{source}: {error}")) from error
    return _answer(row, as_json=as_json)


@app.command("list")
def list_images(group: Group = None, as_json: AsJson = False) -> Answer:
    """List your group's images, and those that the nodes have."""
    with connect() as control:
        found, site = control.images(group=group), control.site_images()
    return Answer({"pushed": found, "site": site} if as_json else (_table(found), *_of_nodes(site)), as_json)


@app.command()
def show(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Show one image."""
    with connect() as control:
        return _answer(control.image(_checked(name), group=group), as_json=as_json)


@app.command()
def rm(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Remove an image. Control refuses while an unended job needs it."""
    with connect() as control:
        return _answer(control.remove_image(_checked(name), group=group), as_json=as_json)


@app.command()
def publish(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Let all groups use a group's image. Only an admin can do this."""
    with connect() as control:
        return _answer(control.publish_image(_checked(name), group=group), as_json=as_json)


@app.command()
def unpublish(name: Named, as_json: AsJson = False) -> Answer:
    """Withdraw a published image. Control refuses while an unended job needs it."""
    with connect() as control:
        return _answer(control.unpublish_image(_checked(name)), as_json=as_json)


def _checked(name: str) -> str:
    try:
        return TypeAdapter[str](ImageName).validate_python(name)
    except ValidationError:
        raise BadInput(
            f"{one_line(name)!r} is not a name for an image: use lower-case letters and digits, with . _ -"
            " in between, and perhaps a tag, as in pythia:8.3"
        ) from None


def _registry_image(source: str) -> str | None:
    """Return the image's name in its registry, or None if the source is not a registry. Raises an error if the site
    does not allow it."""
    if not source.startswith(_REGISTRY):
        return None
    try:
        image = TypeAdapter[str](RegistryImage).validate_python(source.removeprefix(_REGISTRY))
    except ValidationError:
        raise BadInput(f"{one_line(source)!r}: a name must follow {_REGISTRY}, as in registry.site/pythia:8") from None
    with connect() as control:
        if why := registry_refusal(image, control.site_images().registries):
            raise ClientError(why, kind=ErrorKind.FORBIDDEN)
    return image


def _zstd(packed: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file that was compressed by zstd. A user's installation might lack the library."""
    try:
        import zstandard
    except ModuleNotFoundError:
        raise Hostile("its layers are compressed with zstd: `pip install zstandard` to read them") from None
    reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(packed, read_across_frames=True)
    try:
        while chunk := reader.read(openat.CHUNK_BYTES):
            yield chunk
    except zstandard.ZstdError as error:
        raise Hostile(f"it cannot be read: {error}") from error


DECOMPRESSORS = {**image_archive.STANDARD, **dict.fromkeys(image_archive.ZSTD, _zstd)}


@contextmanager
def _image(source: str, architecture: str, name: str) -> Generator[image_archive.ArchivedImage]:
    """Open the image. Raises `Hostile`."""
    path = Path(source)
    with ExitStack() as opened:
        if path.is_file() and sif.is_sif(path):
            with render.busy(f"unpacking {one_line(source)}"):
                image = opened.enter_context(sif.opened(path, architecture=architecture.partition("/")[0]))
        else:
            file = opened.enter_context(_archive(path, source, architecture))
            plain = opened.enter_context(TemporaryFile())
            if image_archive.unpack(file, plain, DECOMPRESSORS, MOST_BYTES):
                file = plain
            image = image_archive.find(file, architecture=architecture, name=name)
        yield image


@contextmanager
def _archive(path: Path, source: str, architecture: str) -> Generator[BinaryIO]:
    """Open the archive of the image. If the source is a name, skopeo fetches it, or Docker or Podman saves it first."""
    with ExitStack() as opened:
        if path.is_file() or (path / "index.json").is_file():
            try:
                yield opened.enter_context(path.open("rb") if path.is_file() else packed_layout(path))
            except OSError as error:
                raise BadInput(one_line(f"{source}: {error}")) from error
            return
        if path.suffix in {".sif", ".tar", ".gz", ".xz", ".zst"} or path.is_absolute():
            raise BadInput(one_line(f"{source}: no such file"))
        made = Path(opened.enter_context(TemporaryDirectory(prefix="gleaner-image-")), "image.tar")
        if source.startswith(_REGISTRY):
            _run("skopeo", *_fetch(source, architecture, made), does="fetch", source=source)
        else:
            program = shutil.which("docker") or shutil.which("podman")
            if program is None or path.exists() or source.startswith("-"):
                raise BadInput(
                    f"{one_line(source)} is neither an image file, nor an OCI layout, nor a name that could be saved by"
                    " Docker or Podman here: give an archive of `docker save`"
                )
            _run(program, "save", "--output", str(made), source, does="save", source=source)
        yield opened.enter_context(made.open("rb"))


def _fetch(source: str, architecture: str, to: Path) -> Sequence[str]:
    """Return the command line with which skopeo fetches an image for our nodes. It runs with the user's own rights."""
    if shutil.which("skopeo") is None:
        raise BadInput(
            "skopeo fetches images from registries and is not installed here: install skopeo, or push an archive of"
            " `docker save`"
        )
    kind, _, variant = architecture.partition("/")
    chosen = ("--override-variant", variant) if variant else ()
    return ("--override-os", "linux", "--override-arch", kind, *chosen, "copy", "--quiet", source, f"oci-archive:{to}")


def _run(program: str, *words: str, does: str, source: str) -> None:
    """Run a program that copies the image to this machine."""
    name = Path(program).name
    try:
        with render.busy(f"{name}: {does} {one_line(source)}"):
            subprocess.run(
                [program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=True,
                timeout=BRING_S,
            )
    except subprocess.TimeoutExpired:
        raise CliError(f"{name} did not {does} {one_line(source)} within {BRING_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip() or f"exit code {error.returncode}"
        raise BadInput(f"{name} does not {does} {one_line(source)}: {one_line(said)}") from None


def _of_nodes(site: SiteImages) -> Sequence[Table | str]:
    """Return a table of the nodes' images, as agents have reported them."""
    when = "on the nodes:" if site.agents else "on the nodes, as last reported by agents:"
    table = Table.of(site.images, {"IMAGE": "name", "NODES": "nodes"}, right=("NODES",), title=when)
    more = (f"the nodes can also bring images with names like {' or '.join(site.brings)}",) if site.brings else ()
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
