"""Container images as files, for nodes without an engine that could pull them: the files' place, and their handover.

A folder (shared, or of the node) holds one entry for each container image, named after it with `_` for each `/` and
`:`: the archive that `docker save` writes (`pythia_1.tar`), or an OCI layout (`pythia_1/`, as `skopeo copy` writes it).
The agent opens them as itself; a layout is first packed into one file without a name, so that the node's helper, which
is root, reads from a descriptor alone.
"""

import contextlib
import os
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path

from gleaner.agent.runtime.interface import RuntimeFault


def file_name(image: str) -> str:
    """Return the name of an image's entry, without an ending.

    >>> file_name("registry.site/pythia:1")
    'registry.site_pythia_1'
    """
    return image.replace("/", "_").replace(":", "_")


@contextlib.contextmanager
def archive_of(folder: Path, image: str) -> Generator[int | None]:
    """Yield a descriptor of the image's archive; None if there is none. Raises `RuntimeFault` if it cannot be read."""
    layout = folder / file_name(image)
    try:
        if (archive := layout.with_name(f"{layout.name}.tar")).is_file():
            with archive.open("rb") as file:
                yield file.fileno()
        elif (layout / "index.json").is_file():
            with tempfile.TemporaryFile() as packed:
                with tarfile.open(fileobj=packed, mode="w") as tar:
                    for name in ("oci-layout", "index.json", "blobs"):
                        tar.add(layout / name, name)
                packed.flush()
                os.lseek(packed.fileno(), 0, os.SEEK_SET)
                yield packed.fileno()
        else:
            yield None
    except (OSError, tarfile.TarError) as error:
        raise RuntimeFault(f"cannot read the image {layout}: {error}") from error
