"""No link lies in CRIU's way while it restores a user job, and none can be put there."""

import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.scripts import PACKAGE, python

from gleaner.agent.privileged.common import symlink_guard
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.common.symlink_guard import Foreign
from gleaner.agent.privileged.shim import main, transfer, written_layer
from gleaner.agent.privileged.shim.own_config import packed_init
from gleaner.agent.privileged.shim.seal import Broken, SaveNotes, open_seal, seal
from gleaner.agent.system import ipc, tar_unpack
from gleaner.agent.system.tar_policy import Hostile, Links, SizeLimit

pytestmark = only_root
USER = 1
Facts = dict[str, tuple[int, int, int, int, str]]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "job"
    (place / "deep" / "open").mkdir(parents=True)
    (place / "file").write_text("x")
    (place / "deep" / "file").symlink_to("/etc/passwd")
    (place / "deep" / "open" / "out").symlink_to("/etc")
    (place / "own").symlink_to("deep/open")
    for path in (place, *place.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    (place / "deep").chmod(0o2775)
    (place / "deep" / "open").chmod(0o777)
    tmp_path.chmod(0o755)
    yield place


def seen(place: Path) -> Facts:
    found = {path: path.lstat() for path in (place, *place.rglob("*"))}
    return {
        str(path): (
            facts.st_mode, facts.st_uid, facts.st_gid, 0 if path.is_symlink() else facts.st_mtime_ns,
            str(path.readlink()) if path.is_symlink() else "",
        )
        for path, facts in found.items()
    }  # fmt: skip


def as_user(script: str, place: Path) -> str:
    done = subprocess.run(
        ["sh", "-c", script], cwd=place, user=USER, group=USER, extra_groups=[], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.stdout


def test_all_is_back_as_it_was_and_there_was_no_link_meanwhile(job: Path) -> None:
    before = seen(job)
    kept = symlink_guard.freeze(str(job), USER, disk=str(job.parent))
    assert not [path for path in job.rglob("*") if path.is_symlink()]
    assert {path.lstat().st_uid for path in (job, *job.rglob("*")) if path.is_dir()} == {0}
    assert stat.S_IMODE((job / "deep").stat().st_mode) == 0o2775, "CRIU compares the modes of folders that are open"
    symlink_guard.thaw(kept)
    assert seen(job) == before


@pytest.mark.parametrize("acl", [False, True], ids=["by mode", "by an access list"])
def test_its_user_can_put_no_link_there_not_even_through_a_folder_that_is_held_open(job: Path, *, acl: bool) -> None:
    if acl:  # u::rwx,u:1:rwx,g::r-x,m::rwx,o::r-x
        parts = [(1, 7, -1), (2, 7, USER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
        listed = b"".join(a.to_bytes(2, "little") + b.to_bytes(2, "little") + (c % 2**32).to_bytes(4, "little")
                          for a, b, c in parts)  # fmt: skip
        try:
            os.setxattr(job / "deep", "system.posix_acl_access", (2).to_bytes(4, "little") + listed)
        except OSError:
            pytest.skip("the file system has no access lists")
    holder = subprocess.Popen(
        ["sh", "-c", "echo; read -r go; ln -s /etc new; mkdir sub; mv open moved; ls"], cwd=job / "deep",
        user=USER, group=USER, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    kept = symlink_guard.freeze(str(job), USER, disk=str(job.parent))
    said, _ = holder.communicate("go\n", timeout=60)
    assert said.split() in ([], ["open"])
    assert [path.name for path in (job / "deep").iterdir()] == ["open"]
    assert as_user("ln -s /etc new; ls new", job / "deep" / "open") == ""
    symlink_guard.thaw(kept)


def test_what_is_not_the_users_is_refused_and_all_is_as_before(job: Path) -> None:
    """Such a file may be a further name for one of root's, where the kernel lets users make such names."""
    (job / "deep" / "open" / "roots").write_text("secret")
    before = seen(job)
    with pytest.raises(Foreign, match="another user"):
        symlink_guard.freeze(str(job), USER, disk=str(job.parent))
    assert seen(job) == before


def test_a_folder_on_which_something_is_mounted_is_refused(job: Path) -> None:
    place = job / "deep" / "open"
    script = (
        f"mount -t tmpfs -o uid={USER},gid={USER} none {place} || exit 9; "
        f'exec python3 -c \'import sys; sys.path.insert(0, "{PACKAGE}"); '
        "from gleaner.agent.privileged.common import symlink_guard as links; "
        f'links.freeze("{job}", {USER}, disk="{job.parent}")\''
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 9:
        pytest.skip("nothing can be mounted here")
    assert "something is mounted at 'deep/open'" in done.stderr


def archive(*members: tuple[str, bytes, str]) -> list[bytes]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as made:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.uid = kind, link, USER
            made.addfile(member)
    return [content.getvalue()]


def test_links_of_a_layer_are_made_only_when_they_are_put_back_and_none_leads_another_astray(tmp_path: Path) -> None:
    (upper := tmp_path / "upper").mkdir()
    (outside := tmp_path / "outside").mkdir()
    aside: Links = []
    members = [
        ("tmp/a", tarfile.SYMTYPE, str(outside)),
        ("b/under", tarfile.DIRTYPE, ""),
        ("b", tarfile.REGTYPE, ""),
        ("tmp/a/x", tarfile.SYMTYPE, "/etc"),
        ("c", tarfile.SYMTYPE, str(outside)),
        ("c/x", tarfile.SYMTYPE, "/etc"),
    ]
    written_layer.put_back(archive(*members[:1], *members[4:5]), str(upper), SizeLimit(10**6), aside)
    assert list(upper.rglob("*")) == [upper / "tmp"]
    aside += [["c/x", "/etc", USER, USER], ["tmp/a/x", "/etc", USER, USER], ["t\0", "/etc", USER, USER]]
    symlink_guard.thaw({"at": str(upper), "folders": [], "links": aside})
    assert (upper / "tmp" / "a").readlink() == (upper / "c").readlink() == outside
    assert (upper / "c").lstat().st_uid == USER
    assert list(outside.iterdir()) == []


def test_a_layer_cannot_make_root_remember_without_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tar_unpack, "_MOST_LINKS", 1)
    with pytest.raises(Hostile, match="more links"):
        written_layer.put_back(
            archive(("a", tarfile.SYMTYPE, "x"), ("b", tarfile.SYMTYPE, "x")), str(tmp_path), SizeLimit(10**6), []
        )


def test_what_was_saved_in_one_image_is_not_restored_in_another() -> None:
    """CRIU would follow a link that the other image has in place of a folder."""
    text = seal(b"k", USER, SaveNotes("[]", {}, "sha256:a"))
    assert open_seal(b"k", USER, text, "sha256:a").image == "sha256:a"
    with pytest.raises(Broken, match="another image"):
        open_seal(b"k", USER, text, "sha256:b")


@pytest.mark.parametrize("works", [True, False])
def test_criu_finds_no_link_and_whatever_becomes_of_it_they_are_back(
    job: Path, monkeypatch: pytest.MonkeyPatch, *, works: bool
) -> None:
    before, own = seen(job), job.parent / "own"
    own.mkdir()
    during: list[list[Path]] = []

    def run(*_: object, **__: object) -> int:
        during.append([path for path in job.rglob("*") if path.is_symlink()])
        if not works:
            raise Broken("files.img is not what was saved")
        return 0

    monkeypatch.setattr(transfer, "_run", run)
    monkeypatch.setattr(ipc, "listen", lambda *_: socket.socket(socket.AF_UNIX))  # long paths
    monkeypatch.setattr(transfer, "open_seal", lambda *_: SaveNotes('["/dev/null", "/dev/null", "/dev/null"]', {}))
    monkeypatch.setattr(transfer, "_make_relay", lambda _own, listener, **_named: (None, listener))
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(transfer, "_connect", lambda *_: (transfer._Owner(USER, b"k"), ipc.Handshake(ours, 5)))
    (job.parent / "gleaner-init").touch()
    ipc.Handshake(theirs, 5).say({"init": packed_init(str(job.parent))})
    call = main.parse(["--root", str(job.parent), "create", "--bundle", str(job.parent), "c"])
    assert call is not None
    (job.parent / "c").mkdir()
    (job.parent / "config.json").write_text('{"root": {"path": "c"}}')
    try:
        transfer._restore(Config(4200, own=str(own / "o"), users_work=str(job.parent)), call, {})
    except Broken:
        assert not works
    assert during == [[]]
    assert seen(job) == before
    theirs.close()


def test_links_are_back_before_the_processes_go_on(job: Path) -> None:
    """By what CRIU's action script says last of all; `criu` is called with a program in CRIU's place."""
    before, own = seen(job), job.parent / "own"
    (own / "work").mkdir(parents=True)
    symlink_guard.write_records(str(own), symlink_guard.freeze(str(job), USER, disk=str(job.parent)))
    fake = "echo $what 1 >notifications; read -r answer <answers; ls -l ../job"
    fake = f"for what in post-restore pre-resume; do {fake}; done"
    script = f"""
import fcntl, os, socket, sys
from gleaner.agent.privileged.shim import criu_call as criu
fcntl.flock(os.open({str(own)!r}, os.O_RDONLY), fcntl.LOCK_EX)  # as the call that has made the folder
criu._notify = lambda *_: True
criu._objection = lambda *_, **_more: None
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
criu._run(["sh", "-c", {fake!r}], {str(own)!r}, ours, {USER})
"""
    said = subprocess.run(python(script), cwd=own, capture_output=True, text=True, check=True, timeout=20)
    assert said.stdout.count("->") == 1, "none when the first was answered, and the one when the second was"
    assert seen(job) == before
    assert not symlink_guard.has_records(str(own))


def in_own_mounts(script: str, *words: str) -> str:
    """Run a script of the shell as root in a mount namespace of its own; what it printed, or its last error."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, PACKAGE, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout or done.stderr.strip().splitlines()[-1]


FREEZE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gleaner.agent.privileged.common import symlink_guard as links; "
    "links.freeze(sys.argv[2], 1, disk=sys.argv[3])"
)


@pytest.mark.parametrize(
    ("mount", "line"),
    [
        (f"mount -t tmpfs -o uid={USER},gid={USER} none $2", "something is mounted on the job's folder"),
        ("mount --bind $2/deep/open $2/deep", "something is mounted at 'deep' in the job's folder"),
    ],
    ids=["on the folder itself", "of the same disk"],
)
def test_what_is_mounted_on_a_users_folder_is_refused_whatever_it_says_of_itself(
    job: Path, mount: str, line: str
) -> None:
    """With FUSE owners, types and links are whatever the user's daemon says, also after all was looked at."""
    said = in_own_mounts(f'{mount} && exec "$0" -c "{FREEZE}" "$1" "$2" "$3"', str(job), str(job.parent))
    assert line in said


SAME_FOLDER = (
    "import os, sys; sys.path.insert(0, sys.argv[1]); from gleaner.agent.privileged.helper import monitor; "
    "monitor._same_folder(os.open(sys.argv[2], os.O_PATH)); print(1)"
)


@pytest.mark.parametrize("mounted", [False, True])
def test_a_container_is_not_begun_in_a_folder_on_which_something_is_mounted(job: Path, *, mounted: bool) -> None:
    mount = "mount -t tmpfs none $2" if mounted else "true"
    said = in_own_mounts(f'{mount} && exec "$0" -c "{SAME_FOLDER}" "$1" "$2"', str(job))
    assert said == ("OSError: something is mounted on the job's folder: unmount it" if mounted else "1\n")


BIND = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gleaner.agent.privileged.common import linux
job, place = sys.argv[2], sys.argv[3]
ready, (done, told) = os.pipe(), os.pipe()
if os.fork() == 0:
    linux.own_mounts(sees_outside=True)
    linux.bind(os.open(job, os.O_PATH), place)
    os.write(ready[1], b"x")
    os.read(done, 1)
    print(sorted(os.listdir(place)) != [])
    sys.exit()
os.read(ready[0], 1)
os.system(f"mount -t tmpfs none {job}")
os.write(told, b"x")
os.wait()
"""


def test_what_is_mounted_on_the_folder_later_does_not_reach_the_container(job: Path) -> None:
    (job.parent / "place").mkdir()
    script = 'mount --make-rshared / && exec "$0" -c "$4" "$1" "$2" "$3"'
    assert in_own_mounts(script, str(job), str(job.parent / "place"), BIND) == "True\n"
