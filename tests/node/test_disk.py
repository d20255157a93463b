"""The disk space that jobs take: counted, and judged."""

import contextlib
import multiprocessing
import os
import subprocess
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.pretended_runtime import PretendedRuntime

from gleaner.agent.node.disk_usage import (
    DiskLimits,
    DiskWatch,
    InTheWay,
    Room,
    TooLarge,
    Verdict,
    deleted_open_files,
    verdicts,
)
from gleaner.agent.privileged.common.disk_usage import DiskUse, count_disk_use
from gleaner.agent.runtime.interface import ContainerId, RuntimeFault

MIB = 2**20
LIMITS = DiskLimits(mib_per_job=100, inodes_per_job=1000, reserve_mib=50)
A, B, C = ContainerId("a"), ContainerId("b"), ContainerId("c")
NOBODY = 65534


def count(folder: Path, **limits: int) -> DiskUse:
    return count_disk_use(str(folder), within_s=60, **limits)  # type: ignore[arg-type]


def as_du(folder: Path) -> int:
    said = subprocess.run(["du", "-s", "-x", "--block-size=1", str(folder)], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


# ── counting ──


def test_files_folders_and_several_names_count_as_du_counts_them(tmp_path: Path) -> None:
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "file").write_bytes(bytes(100_000))
    (tmp_path / "again").hardlink_to(tmp_path / "one" / "file")
    (tmp_path / "one" / "two" / "small").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    found = count(tmp_path)
    assert found == DiskUse(as_du(tmp_path), 6)


def test_no_link_is_followed_and_a_folder_that_is_one_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "large").write_bytes(bytes(MIB))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "link").symlink_to(tmp_path / "other")
    assert count(tmp_path / "job").size_bytes < MIB
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert count(tmp_path / "link") == DiskUse(count(tmp_path / "link").size_bytes, 1, is_whole=True)


@pytest.mark.slow
def test_the_count_stops_soon_after_a_limit_is_passed(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number}").touch()
    found = count(tmp_path, most_inodes=100)
    assert 100 < found.inodes < 1000
    assert not found.is_whole
    (tmp_path / "0").write_bytes(bytes(MIB))
    assert not count(tmp_path, most_bytes=1000).is_whole


@pytest.mark.slow
def test_the_count_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}").mkdir()
    assert not count_disk_use(str(tmp_path), within_s=0).is_whole


def open_below(folder: Path) -> list[str]:
    """This process's open files and folders below `folder`; what other threads open and close does not count."""
    found: list[str] = []
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(number.readlink()))
    return [name for name in found if name.startswith(str(folder))]


def nested(place: Path, depth: int) -> int:
    """Folders within folders, all called `d`; the deepest, opened."""
    here = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    return here


@pytest.mark.slow
def test_folders_within_folders_however_deep_hide_nothing(tmp_path: Path) -> None:
    deepest = nested(tmp_path, 1500)
    file = os.open("large", os.O_CREAT | os.O_WRONLY, dir_fd=deepest)
    os.write(file, bytes(MIB))
    os.close(file)
    os.close(deepest)
    try:
        found = count(tmp_path)
    finally:  # so deep that what removes the folders of old tests cannot
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)
    assert (found.is_whole, found.inodes) == (True, 1502)
    assert found.size_bytes >= MIB
    assert not open_below(tmp_path)


def count_as_nobody(folder: Path, said: Connection) -> None:
    """Send what a job's own account counts, since root is let in everywhere."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    said.send(tuple(count(folder, own=True)))


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100])
def test_a_folder_that_its_owner_has_locked_hides_nothing_and_stays_locked(mode: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        job = Path(place)
        (job / "locked" / "inner").mkdir(parents=True)
        for name in ("locked/other", "locked/inner/large"):
            (job / name).write_bytes(bytes(MIB))
        for name in ("locked/inner", "locked", "."):
            (job / name).chmod(mode)
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(job)], check=True)
        hear, said = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=count_as_nobody, args=(job, said))
        process.start()
        found = DiskUse(*hear.recv())
        process.join()
        assert (found.is_whole, found.inodes) == (True, 5)
        assert found.size_bytes >= 2 * MIB
        assert job.stat().st_mode & 0o777 == mode
        for name in (".", "locked", "locked/inner"):
            (job / name).chmod(0o700)


# ── judging ──


def test_a_job_beyond_its_own_limit_is_told_which_and_what_it_took() -> None:
    found = verdicts({A: DiskUse(101 * MIB, 5), B: DiskUse(100 * MIB, 5), C: DiskUse(1, 1001)}, None, LIMITS)
    assert set(found) == {A, C}
    assert found[A] == TooLarge("it takes at least 101 MiB of the disk, and may take 100 MiB (disk_mib_per_job)")
    assert found[C] == TooLarge("it has at least 1001 files and folders, and may have 1000 (inodes_per_job)")


def test_a_job_may_have_a_limit_of_its_own_below_that_of_the_node() -> None:
    uses = dict.fromkeys((A, B, C), DiskUse(90 * MIB, 5))
    assert verdicts(uses, None, LIMITS, {A: 80, B: 90}) == {
        A: TooLarge("disk limit 80 MiB reached: it takes at least 90 MiB of the disk")
    }
    found = verdicts({A: DiskUse(101 * MIB, 5)}, None, LIMITS, {A: 200})
    assert found[A] == TooLarge("it takes at least 101 MiB of the disk, and may take 100 MiB (disk_mib_per_job)")


def test_below_the_reserve_the_largest_job_is_saved_and_below_half_of_it_ended() -> None:
    jobs = {A: DiskUse(80 * MIB, 5), B: DiskUse(99 * MIB, 5)}
    assert verdicts(jobs, Room("/var", 50 * MIB), LIMITS) == {}
    saved = verdicts(jobs, Room("/var", 49 * MIB), LIMITS)
    assert set(saved) == {B}
    assert saved[B] == InTheWay(
        "/var has 49 MiB free, less than disk_reserve_mib (50); of the jobs here this one takes most, 99 MiB",
        at_once=False,
    )
    ended = verdicts(jobs, Room("/var", 24 * MIB), LIMITS)[B]
    assert isinstance(ended, InTheWay)
    assert ended.at_once


def test_no_job_is_ended_for_a_disk_that_others_have_filled() -> None:
    assert verdicts({A: DiskUse(MIB, 5)}, Room("/var", 0), LIMITS) == {}


def test_a_job_that_hides_what_it_has_goes_first_when_the_disk_is_full() -> None:
    assert set(verdicts({A: DiskUse(99 * MIB, 5), B: DiskUse(MIB, 5, is_whole=False)}, Room("/var", 0), LIMITS)) == {B}


TAKEN = st.builds(DiskUse, st.integers(0, 300 * MIB), st.integers(1, 3000), st.booleans())


@given(
    st.dictionaries(st.sampled_from([A, B, C]), TAKEN),
    st.none() | st.builds(Room, st.just("/var"), st.integers(0, 200 * MIB), st.booleans()),
)
def test_who_passes_no_limit_is_left_alone_while_there_is_room_and_at_most_one_goes_when_there_is_not(
    jobs: dict[ContainerId, DiskUse], left: Room | None
) -> None:
    judged: dict[ContainerId, Verdict] = verdicts(jobs, left, LIMITS)
    for container, one in jobs.items():
        passed = one.size_bytes > 100 * MIB or one.inodes > 1000
        assert isinstance(judged.get(container), TooLarge) == passed
    others = [one for one in judged.values() if isinstance(one, InTheWay)]
    assert len(others) <= 1
    if others:
        assert left is not None
        assert left.is_short(50 * MIB)


# ── looking ──


def watch(tmp_path: Path, runtime: PretendedRuntime, **limits: int) -> DiskWatch:
    return DiskWatch(runtime, tmp_path, DiskLimits(**{"reserve_mib": 0, **limits}), images_keep_s=1.0)


def test_what_a_job_has_in_its_folder_and_in_its_container_counts_together(tmp_path: Path) -> None:
    runtime = PretendedRuntime()
    runtime.has_written = DiskUse(60 * MIB, 10)
    (tmp_path / "large").write_bytes(bytes(2 * MIB))
    found = watch(tmp_path, runtime, mib_per_job=61).look({A: tmp_path})
    assert isinstance(found[A], TooLarge)
    assert watch(tmp_path, runtime, mib_per_job=63).look({A: tmp_path}) == {}


def test_an_engine_that_does_not_answer_hides_no_folder(tmp_path: Path) -> None:
    class Silent(PretendedRuntime):
        def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
            raise RuntimeFault("it hangs")

        def data_folders(self) -> tuple[str, ...]:
            raise RuntimeFault("it hangs")

    (tmp_path / "large").write_bytes(bytes(2 * MIB))
    assert isinstance(watch(tmp_path, Silent(), mib_per_job=1).look({A: tmp_path})[A], TooLarge)


def test_while_what_one_job_had_is_being_removed_no_other_has_to_go(tmp_path: Path) -> None:
    runtime = PretendedRuntime()
    runtime.has_written = DiskUse(100 * MIB, 1)
    looking = watch(tmp_path, runtime, reserve_mib=2**40)
    assert set(looking.look({A: tmp_path})) == {A}
    looking._urgent_s = 0.0
    assert looking.look({B: tmp_path}) == {}
    looking._urgent_s = 0.0
    assert set(looking.look({A: tmp_path})) == {A}
    looking._urgent_s = looking._removal_end_s = 0.0
    assert set(looking.look({B: tmp_path})) == {B}


# ── what is hidden ──


def process(processes: Path, number: int, cgroup: str) -> Path:
    place = processes / str(number)
    place.mkdir(parents=True)
    (place / "cgroup").write_text(f"3:memory:{cgroup}\n0::{cgroup}\n")
    return place


def test_what_a_process_holds_open_without_a_name_counts_for_its_container(tmp_path: Path) -> None:
    for number, cgroup in enumerate(("/gleaner-node1/a", "/system.slice/docker-b.scope", "/a/other", "/gleaner/ba")):
        (process(tmp_path, number, cgroup) / "fd").mkdir()
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(MIB))
        file.flush()
        for number in (0, 1):
            (tmp_path / str(number) / "fd" / "3").symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        assert deleted_open_files([A, B, C], processes=tmp_path) == {A: DiskUse(), B: DiskUse()}
        (tmp_path / "file").unlink()
        found = deleted_open_files([A, B, C], processes=tmp_path)
    assert set(found) == {A, B}
    assert found[A].size_bytes >= MIB
    assert found[A].inodes == 1


def test_a_process_that_lets_nobody_look_is_not_taken_for_one_that_holds_nothing(tmp_path: Path) -> None:
    (process(tmp_path, 1, "/gleaner/a") / "fd").touch()
    process(tmp_path, 2, "/gleaner/b")
    assert deleted_open_files([A, B], processes=tmp_path) == {A: DiskUse(0, 0, is_whole=False), B: DiskUse()}
