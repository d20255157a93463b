"""SIF files become images: the same files, the environment and start of Apptainer, nothing setuid and no device."""

import gzip
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from demo import sif_file

from gleaner.control.cli import sif
from gleaner.control.cli.image_archive import NotAnImage

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
    """The members of the layer, and its digest."""
    with sif.opened(path, architecture="amd64") as image:
        content = b"".join(image.pieces())
        (layer,) = image.layers
        assert len(content) == layer.size_bytes
        assert json.loads(image.config)["rootfs"]["diff_ids"] == [layer.diff_id]
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name: member for member in archive}, layer.diff_id


def test_it_has_the_files_and_nothing_that_apptainer_would_not_let_work(root: Path, tmp_path: Path) -> None:
    (root / "opt" / "own").chmod(0o4755)
    (root / "opt" / "secret").write_text("no")
    (root / "opt" / "secret").chmod(0)
    os.link(root / "opt" / "own", root / "opt" / "twin")
    (root / "opt" / "link").symlink_to("own")
    os.mkfifo(root / "opt" / "pipe")
    name = os.fsdecode(b"caf\xe9\n")
    (root / name).mkdir()
    (root / name).chmod(0o1777)
    found, _ = layer_of(sif_file.make(root, tmp_path / "own.sif"))
    assert (found["opt/own"].mode, found["opt/own"].size, found["opt/secret"].mode) == (0o755, 3, 0)
    assert (found["opt/twin"].islnk(), found["opt/twin"].linkname) == (True, "opt/own")
    assert (found["opt/link"].issym(), found["opt/link"].linkname) == (True, "own")
    assert (found[name].isdir(), found[name].mode) == (True, 0o1777)
    assert "opt/pipe" not in found
    assert {member.uid for member in found.values()} == {0}


def test_the_same_file_gives_the_same_image(root: Path, tmp_path: Path) -> None:
    path = sif_file.make(root, tmp_path / "own.sif")
    assert layer_of(path)[1] == layer_of(path)[1]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("a b", "c"), "run|a b|c|site|given|/image:/bin"),
        (("exec", "/bin/show", "a b"), "show|a b||site|given|/image:/bin"),
    ],
)
def test_it_starts_as_under_apptainer(root: Path, tmp_path: Path, words: tuple[str, ...], printed: str) -> None:
    """Here in a chroot, with the files of this machine's shell."""
    show = '#!/bin/sh\necho "$(basename "$0")|$1|$2|$OF_IMAGE|$OF_BOTH|$PATH"\n'
    environment = 'export OF_IMAGE=site OF_BOTH=image PATH="/image:/bin"'
    sif_file.fill(
        root, sif_file.scripts(runscript='echo "run|$1|$2|$OF_IMAGE|$OF_BOTH|$PATH"', environment=environment)
    )
    sif_file.fill(root, {"bin/show": show})
    with sif.opened(sif_file.make(root, tmp_path / "own.sif"), architecture="amd64") as image:
        (tmp_path / "layer.tar").write_bytes(b"".join(image.pieces()))
        config = json.loads(image.config)["config"]
    (script,) = config["Entrypoint"]
    unpacked = tmp_path / "unpacked"
    with tarfile.open(tmp_path / "layer.tar") as archive:
        archive.extractall(unpacked, filter="fully_trusted")
    text = (unpacked / script.lstrip("/")).read_text().replace("/.singularity.d", f"{unpacked}/.singularity.d")
    text = text.replace("/bin/show", f"{unpacked}/bin/show")
    (tmp_path / "start").write_text(text)
    given = dict(variable.split("=", 1) for variable in config["Env"]) | {"OF_BOTH": "given", "QUOTED": "it's\n$x"}
    words = tuple(word.replace("/bin/show", f"{unpacked}/bin/show") for word in words)
    done = subprocess.run(["/bin/sh", str(tmp_path / "start"), *words], env=given, capture_output=True, check=True)
    assert done.stdout.decode() == f"{printed}\n"


def refusal(path: Path, architecture: str = "amd64") -> str:
    with pytest.raises(NotAnImage) as refused, sif.opened(path, architecture=architecture):
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
    ("link", "to", "is_there"),
    [
        ("bin", "/usr/bin", True),  # as in images of Fedora, and the pusher's own /usr/bin has a shell, too
        ("bin", "usr/bin", True),
        ("bin", "../../usr/bin", True),
        ("bin", "/elsewhere", False),
        ("usr/bin/sh", "/bin/dash", False),
        ("usr/bin/sh", "sh", False),
    ],
)
def test_a_link_in_the_image_leads_to_nothing_of_the_pushers_machine(
    tmp_path: Path, link: str, to: str, is_there: bool
) -> None:
    root = tmp_path / "root"
    sif_file.fill(root, {"usr/bin/true": ""} | ({"usr/bin/sh": ""} if is_there else {}))
    if link != "bin":
        (root / "bin").symlink_to("/usr/bin")
    (root / link).symlink_to(to)
    (root / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "sh").write_text("the pusher's own")
    assert sif.has_file(root, "bin/sh") == is_there


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("32768 FS (Encrypted squashfs/*System/amd64)", "it is encrypted"),
        ("32768 FS (Ext3/*System/amd64)", "its file system is Ext3"),
        ("32768 FS (Squashfs/System/amd64)", "there is no file system"),
        ("32176 Unknown", "it is an OCI-SIF"),
    ],
)
def test_other_kinds_of_sif_are_refused_by_name(row: str, why: str) -> None:
    """As siftool names them; it makes neither encrypted ones nor OCI-SIFs itself."""
    with pytest.raises(NotAnImage, match=why):
        sif.file_system([row], "amd64")


@pytest.mark.parametrize(
    ("name", "architecture", "why"),
    [
        ("empty", "amd64", "there is no file system in it"),
        ("one-group", "amd64", "it is for 386"),
        ("one-group", "386", "it has no /bin/sh"),
        ("one-group-signed-legacy", "amd64", "it is for 386"),
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


def test_what_is_too_large_is_refused_before_it_is_unpacked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "opt" / "large").write_bytes(bytes(2**20))
    path = sif_file.make(root, tmp_path / "own.sif")
    monkeypatch.setattr("gleaner.control.cli.sif.MOST_BYTES", 2**20)
    assert "larger than" in refusal(path)
    monkeypatch.setattr("gleaner.control.cli.sif.MOST_FILES", 2)
    assert "more than 2 files" in refusal(path)


@pytest.mark.parametrize("program", ["siftool", "unsquashfs"])
def test_a_missing_program_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    path = sif_file.make(root, tmp_path / "own.sif")
    only = tmp_path / "bin"
    only.mkdir()
    for name in {"siftool", "unsquashfs"} - {program}:
        (only / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(only))
    assert f"{program}" in refusal(path)
