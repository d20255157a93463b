"""The cost of large inputs and images on a node: the agent's memory, and the starts. `make bench-image`.

An input of 5 GB is stored, and staged as an agent does it, in a process that has loaded the agent's code. Its peak
memory counts. An image of 2 GB is stored from an archive of `docker save`, and once more from a SIF file. Each is
loaded from the storage into the engine, and then started five times more, until the program has ended. The node is this
machine, with our engine and Docker as the runtime.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from demo import nsenter, sif_file
from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.runtime.account_harness import AsAccount

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.job.inputs import CONTENT, INPUT_PART, input_key
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import Assignment, StoredInput
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.images import IMAGE_PART, ensure_image, image_key
from gleaner.agent.runtime.interface import ContainerSpec
from gleaner.agent.system import image_archive, tar_pack
from gleaner.control.api.uploads import store
from gleaner.control.cli import sif
from gleaner.control.cli.images import DECOMPRESSORS
from gleaner.control.models.images import dockers_word
from gleaner.control.models.uploads import MOST_BYTES

STAGE = Path(__file__).parent / "stage_input.py"
OUTPUT = Path("bench-output/image.json")
PLACE = Path("/var/lib/gleaner/bench-image")
BASE = "gleaner/pi:demo"
GROUP = "bench"
USER = (4200, 4200)
STARTS = 5
MOST_MIB = 200
"""The most memory that the agent may need while it stages."""
MOST_LATER_S = 2.0
"""So much longer may the second start of a SIF file take than that of the Docker image."""
_CHUNK = 4 * 2**20
console = Console()


@dataclass(frozen=True, slots=True)
class Staging:
    """One input that was brought."""

    size_mb: int
    idle_mib: float
    """The most memory that the process had needed before."""
    peak_mib: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Starts:
    """One image, seconds."""

    kind: str
    size_mb: int
    read_s: float
    store_s: float
    load_s: float
    first_s: float
    later_s: float


def main(words: list[str]) -> None:
    """Measure, print and keep the figures."""
    options = _options(words)
    figures = StoredFigures(OUTPUT, cores=os.cpu_count())
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    PLACE.chmod(0o711)
    try:
        staging = _staging(int(options.input_mb))
        figures.add("staging", staging)
        starts = []
        for kind in ("docker", "sif"):
            starts.append(_starts(kind, int(options.image_mb)))
            figures.add("starts", starts[-1])
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    later_s = starts[1].later_s - starts[0].later_s
    is_good = staging.peak_mib < MOST_MIB and later_s < MOST_LATER_S
    figures.note(sif_later_s=round(later_s, 3), is_good=is_good)
    _show(staging, starts, later_s)
    console.print(f"facts: {OUTPUT}")
    if not is_good:
        raise SystemExit("what was promised does not hold")


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_image.py", description=__doc__)
    parser.add_argument("--input-mb", type=int, default=5000, help="the size of the input")
    parser.add_argument("--image-mb", type=int, default=2000, help="the size of the data in the image")
    return parser.parse_args(words)


def _show(staging: Staging, starts: list[Starts], later_s: float) -> None:
    table = Table(title="an input that is staged", title_justify="left")
    for column in ("MB", "s", "MiB before", "MiB at most", "allowed"):
        table.add_column(column, justify="right")
    before, most = f"{staging.idle_mib:.0f}", f"{staging.peak_mib:.0f}"
    table.add_row(str(staging.size_mb), f"{staging.seconds:.1f}", before, most, str(MOST_MIB))
    console.print(table)
    table = Table(title="an image, in seconds", title_justify="left")
    for column in ("from", "MB", "read", "stored", "loaded", "first start", "later starts"):
        table.add_column(column, justify="left" if column == "from" else "right")
    for row in starts:
        seconds = (f"{one:.2f}" for one in (row.read_s, row.store_s, row.load_s, row.first_s, row.later_s))
        table.add_row(row.kind, str(row.size_mb), *seconds)
    console.print(table)
    console.print(f"a later start of the SIF file takes {later_s:+.2f} s more (allowed: {MOST_LATER_S:.0f})")


# ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────


def _staging(size_mb: int) -> Staging:
    """Store an input, and stage it in a process of its own."""
    storage = FolderStorage(PLACE / "storage")
    storage.prepare()
    content = f"sha256:{'0' * 64}"
    with storage.draft(input_key(GROUP, content)) as draft:
        size_bytes = draft.add(INPUT_PART, _archive(size_mb * 10**6)).size_bytes
        digest = draft.publish({"content": content}).digest
    given = Assignment(
        job=1,
        attempt=1,
        group=GROUP,
        spec=JobSpec(name="bench", image=BASE),
        memory_mib=100,
        inputs=(StoredInput(name="large", content=content, digest=digest, size_bytes=size_bytes),),
    )
    (PLACE / "assignment.json").write_text(given.model_dump_json())
    words = [sys.executable, str(STAGE), *(str(PLACE / name) for name in ("storage", "assignment.json", "work"))]
    printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=1800).stdout
    shutil.rmtree(PLACE / "work")
    storage.delete(input_key(GROUP, content))
    return Staging(size_mb, **json.loads(printed))


def _archive(size_bytes: int) -> Iterator[bytes]:
    """Yield the archive of one file of random bytes, as `glean submit` packs an input."""
    chunks = (os.urandom(min(_CHUNK, size_bytes - at)) for at in range(0, size_bytes, _CHUNK))
    return tar_pack.pack_files([tar_pack.File(CONTENT, size_bytes, chunks)])


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────


def _starts(kind: str, size_mb: int) -> Starts:
    """Store an image from a file of this kind, load it into the engine and start it several times."""
    image_id = _build(size_mb)
    file = PLACE / f"image.{kind}"
    if kind == "sif":
        sif_file.of_image(image_id, file)
    else:
        _docker("save", "--output", str(file), image_id)
    _docker("image", "rm", "--force", image_id)
    storage, began_s = FolderStorage(PLACE / "storage"), time.monotonic()
    with _opened(kind, file) as image:
        read_s = time.monotonic() - began_s
        began_s = time.monotonic()
        files = image_archive.stored(
            image, image_archive.check(image, image_archive.policy_of(MOST_BYTES), DECOMPRESSORS), DECOMPRESSORS
        )
        digest = store(storage, image_key(image.id), IMAGE_PART, tar_pack.pack_files(files))
        store_s = time.monotonic() - began_s
    file.unlink()
    runtime: Any = AsAccount(lambda: DockerRuntime(nsenter.SOCKET), USER)
    began_s = time.monotonic()
    ensure_image(runtime, storage, image.id, digest, lock=PLACE / "lock", limit_bytes=2**40)
    load_s = time.monotonic() - began_s
    words = ("exec", "/bin/true") if kind == "sif" else ("/bin/true",)
    try:
        seconds = [_start_s(runtime, image.id, words, number) for number in range(1 + STARTS)]
    finally:
        _docker("image", "rm", "--force", image.id)
    return Starts(kind, size_mb, read_s, store_s, load_s, seconds[0], statistics.median(seconds[1:]))


def _build(size_mb: int) -> str:
    """Build an image with so much data in it. Return its id."""
    context = PLACE / "context"
    (context / "data").mkdir(parents=True)
    for number in range(20):
        with (context / "data" / str(number)).open("wb") as file:
            for _ in range(10):
                file.write(os.urandom(size_mb * 10**6 // 200))
    (context / "Dockerfile").write_text(f'FROM {BASE}\nCOPY data /data\nENTRYPOINT ["/usr/bin/env"]\n')
    image_id = _docker("build", "--quiet", "--no-cache", str(context)).strip()
    shutil.rmtree(context)
    return image_id


@contextmanager
def _opened(kind: str, file: Path) -> Iterator[image_archive.ArchivedImage]:
    architecture = dockers_word(os.uname().machine)
    with ExitStack() as opened:
        if kind == "sif":
            yield opened.enter_context(sif.opened(file, architecture=architecture))
        else:
            yield image_archive.find(opened.enter_context(file.open("rb")), architecture=architecture)


def _start_s(runtime: Any, image_id: str, words: tuple[str, ...], number: int) -> float:
    """Return the seconds from the order to start until the program has ended."""
    folder = PLACE / f"job-{number}"
    folder.mkdir(exist_ok=True)
    os.chown(folder, *USER)
    spec = ContainerSpec(
        name=f"gleaner-bench-{number}",
        image=image_id,
        command=words,
        environment={},
        cpus=1,
        memory_mib=100,
        folder=folder,
        labels={},
    )
    began_s = time.monotonic()
    container = runtime.start(spec)
    try:
        if (status := runtime.wait(container)) != 0:
            raise SystemExit(f"the image's program ended with exit code {status}")
        return time.monotonic() - began_s
    finally:
        runtime.remove(container)


def _docker(*words: str) -> str:
    done = subprocess.run([*nsenter.OUTER, *words], capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        raise SystemExit(f"docker {' '.join(words[:2])}: {done.stderr.strip()[-500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(ended(lambda: main(sys.argv[1:]), "make bench-image", OUTPUT))
