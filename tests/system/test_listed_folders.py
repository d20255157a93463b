"""The folders that an admin lists are opened, and nothing that a user has put in the place of one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root

from gleaner.agent.system.listed_folders import FolderRefused, open_listed

USER, AGENTS = 4200, 4300


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that nobody but root can change, and none above it."""
    made = Path(tempfile.mkdtemp(prefix="gleaner-listed-", dir="/opt"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def folder(path: Path, owner: int = 0, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def opened(path: Path, *, own: tuple[str, ...] = (), for_writing: bool = False) -> str:
    """Return the folder that the descriptor stands for."""
    descriptor = open_listed(str(path), owners=(0, AGENTS), own=own, for_writing=for_writing)
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)


@only_root
def test_a_folder_of_roots_or_the_agents_is_opened_and_only_to_read_one_of_anybodys(place: Path) -> None:
    results = folder(folder(place / "data") / "atlas", AGENTS)
    assert opened(results, for_writing=True) == str(results)
    theirs = folder(results / "theirs", USER, 0o777)
    assert opened(theirs) == str(theirs)
    with pytest.raises(FolderRefused, match=f"others could replace it: {theirs} is not root's or Gleaner's alone"):
        opened(theirs, for_writing=True)


@only_root
@pytest.mark.parametrize(("owner", "mode"), [(USER, 0o755), (0, 0o775), (AGENTS, 0o757)])
def test_a_folder_that_others_could_replace_is_not_opened(place: Path, owner: int, mode: int) -> None:
    theirs = folder(place / "theirs", owner, mode)
    folder(theirs / "calib")
    with pytest.raises(FolderRefused, match=f"others could replace it: {theirs} is not root's or Gleaner's alone"):
        opened(theirs / "calib")


@only_root
def test_below_a_sticky_folder_counts_who_owns_what_is_there(place: Path) -> None:
    scratch = folder(place / "scratch", 0, 0o1777)
    mine, theirs = folder(scratch / "mine", AGENTS), folder(scratch / "theirs", USER)
    assert opened(mine, for_writing=True) == str(mine)
    with pytest.raises(FolderRefused, match=f"others could replace it: {theirs}"):
        opened(theirs)
    with pytest.raises(FolderRefused, match=f"others could replace it: {scratch}"):
        opened(scratch, for_writing=True)


@only_root
def test_no_link_is_followed_not_even_one_of_roots(place: Path) -> None:
    folder(folder(place / "disk") / "inner")
    (place / "link").symlink_to(place / "disk")
    (place / "file").write_text("")
    for path in (place / "link", place / "link" / "inner", place / "file", place / "file" / "inner"):
        with pytest.raises(FolderRefused, match="it leads through a file or a link: list the folder itself"):
            opened(path)
    with pytest.raises(FolderRefused, match="it cannot be entered: No such file or directory"):
        opened(place / "gone")


@only_root
def test_a_folder_in_the_way_of_gleaners_storage_is_refused_whatever_leads_there(place: Path) -> None:
    storage = folder(folder(place / "shared") / "storage")
    (place / "by-link").symlink_to(storage)
    beside = folder(place / "shared" / "storage-of-others")
    for own in (str(storage), str(place / "by-link")):
        for path in (Path("/"), place, place / "shared", storage, folder(storage / f"in-{Path(own).name}")):
            with pytest.raises(FolderRefused, match=f"it is in the way of {own}, which is Gleaner's own"):
                opened(path, own=(own,))
        assert opened(beside, own=(own, str(place / "not-there"))) == str(beside)
