"""SIF files become images: the same files, the environment and start of Apptainer, nothing setuid and no device."""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from demo import sif_file

from gleaner.agent.system.image_archive import content
from gleaner.agent.system.tar_policy import Hostile
from gleaner.control.cli import sif

BEGINS = 32768
"""The place at which siftool puts the first object."""
REAL = Path(__file__).parent / "sif"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The file system of an image."""
    made = tmp_path / "root"
    sif_file.fill(made, sif_file.scripts(runscript='exec /opt/own "$@"') | {"bin/sh": "", "opt/own": "own"})
    return made


def layer_of(path: Path) -> tuple[dict[str, tarfile.TarInfo], str]:
    """The members of the layer with its files, and the image's id."""
    with sif.opened(path, architecture="amd64") as image:
        files = b"".join(content(image.layers[0]))
        image_id = image.id
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        return {member.name: member for member in archive}, image_id


def test_it_has_the_files_and_nothing_that_apptainer_would_not_let_work(root: Path, tmp_path: Path) -> None:
    (root / "opt" / "own").chmod(0o4755)
    (root / "opt" / "secret").write_text("no")
    (root / "opt" / "secret").chmod(0)
    os.link(root / "opt" / "own", root / "opt" / "twin")
    (root / "opt" / "link").symlink_to("own")
    name = os.fsdecode(b"caf\xe9\n")
    (root / name).mkdir()
    (root / name).chmod(0o1777)
    found, _ = layer_of(sif_file.make(root, tmp_path / "own.sif"))
    assert (found["opt/own"].mode, found["opt/own"].size, found["opt/secret"].mode) == (0o755, 3, 0)
    assert (found["opt/twin"].islnk(), found["opt/twin"].linkname) == (True, "opt/own")
    assert (found["opt/link"].issym(), found["opt/link"].linkname) == (True, "own")
    assert (found[name].isdir(), found[name].mode) == (True, 0o1777)
    assert {member.uid for member in found.values()} == {0}


ENVIRONMENTS = {
    "of sh": 'export OF_IMAGE=site OF_BOTH=image PATH="/image:$PATH"',
    "of bash": "source /opt/setup.sh\nif [[ $OF_SETUP == 1 ]]; then export OF_IMAGE=site OF_BOTH=image; fi",
    "that goes elsewhere": "cd /opt; set -eu; export OF_IMAGE=site PATH=/image:$PATH",
}


@pytest.mark.parametrize("what", [*ENVIRONMENTS])
@pytest.mark.parametrize("shells", [("dash",), ("dash", "bash")], ids="+".join)
def test_it_starts_as_under_apptainer(tmp_path: Path, what: str, shells: tuple[str, ...]) -> None:
    """In a root of its own, with this machine's shells in it."""
    if what == "of bash" and "bash" not in shells:
        pytest.skip("dash knows no [[")
    root, shown = tmp_path / "root", 'echo "$1|$2|$OF_IMAGE|$OF_BOTH|$PWD|$(pwd)|$PATH"'
    sif_file.fill(root, sif_file.scripts(runscript=f'printf "run|"; {shown}', environment=ENVIRONMENTS[what]))
    setup = "export OF_SETUP=1 PATH=/image:$PATH\n"
    sif_file.fill(root, {"opt/setup.sh": setup, "bin/show": f"#!/bin/sh\nprintf 'show|'; {shown}\n"})
    (root / "job").mkdir()
    for shell in shells:
        _with_its_libraries(root, f"/bin/{shell}")
    (root / "bin" / "sh").symlink_to(shells[0])
    with sif.opened(sif_file.make(root, tmp_path / "own.sif"), architecture="amd64") as image:
        config = json.loads(image.config)["config"]
        with tarfile.open(fileobj=io.BytesIO(b"".join(content(image.layers[1])))) as start:
            start.extractall(root, filter="fully_trusted")
    given = dict(variable.split("=", 1) for variable in config["Env"]) | {"OF_BOTH": "given", "QUOTED": "it's\n$x"}
    for words, first in ((("a b", "c"), "run|"), (("exec", "/bin/show", "a b", "c"), "show|")):
        command = ["chroot", root, "/bin/sh", "-c", 'cd /job; exec "$@"', "sh", *config["Entrypoint"], *words]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        assert done.stdout == f"{first}a b|c|site|given|/job|/job|/image:{given['PATH']}\n"


def _with_its_libraries(root: Path, program: str) -> None:
    libraries = re.findall(r"/\S+", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout)
    for path in (program, *libraries):
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path[1:])


def refusal(path: Path, architecture: str = "amd64") -> str:
    with pytest.raises(Hostile) as refused, sif.opened(path, architecture=architecture):
        pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_run_is_refused_in_one_line(root: Path, tmp_path: Path) -> None:
    path = sif_file.make(root, tmp_path / "own.sif")
    assert "it is for amd64, and linux/arm64 is wanted" in refusal(path, "arm64")
    content = path.read_bytes()
    path.write_bytes(content[: BEGINS + 300])
    assert "cannot read it" in refusal(path)
    path.write_bytes(content[:BEGINS] + bytes(len(content) - BEGINS))
    assert "cannot read it" in refusal(path)
    (root / ".singularity.d" / "runscript").unlink()
    assert "it has no /.singularity.d/runscript" in refusal(sif_file.make(root, tmp_path / "other.sif"))
    subprocess.run(["siftool", "new", tmp_path / "empty.sif"], check=True, timeout=60)
    assert "there is no file system in it" in refusal(tmp_path / "empty.sif")


@pytest.mark.parametrize(
    ("name", "architecture", "why"),
    [
        ("empty", "amd64", "there is no file system in it"),
        ("one-group", "amd64", "it is for 386"),
        ("one-group", "386", "it has no /bin/sh"),
        ("one-group-signed-legacy", "386", "unsquashfs cannot read it"),  # its file system is four letters
        ("one-object-crypt-message", "amd64", "there is no file system in it"),
        ("one-object-oci-root-index", "amd64", "it is an OCI-SIF"),
    ],
)
def test_files_of_the_formats_own_authors_are_known_for_what_they_are(
    tmp_path: Path, name: str, architecture: str, why: str
) -> None:
    path = tmp_path / f"{name}.sif"
    path.write_bytes(gzip.decompress((REAL / f"{name}.sif.gz").read_bytes()))
    assert sif.is_sif(path)
    assert why in refusal(path, architecture)


def test_what_is_too_large_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "opt" / "large").write_bytes(bytes(2**20))
    path = sif_file.make(root, tmp_path / "own.sif")
    monkeypatch.setattr("gleaner.control.cli.sif.MOST_BYTES", 2**20)
    assert "larger than" in refusal(path)
    monkeypatch.setattr("gleaner.control.cli.sif.MOST_FILES", 2)
    assert "more files than" in refusal(path)
