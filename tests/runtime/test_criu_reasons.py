"""CRIU's log in plain words. The lines are those that CRIU 4.1.1 wrote, each for a program that has what is named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.messages import ReturnReason
from gleaner.agent.privileged.shim.unsavable import Reason, log_line
from gleaner.agent.runtime.criu_reasons import cannot_checkpoint, cannot_restore

DUMP_LOG = """\
(00.000528) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.041) Warn  (criu/sk-unix.c:1): unix: something
{error}
(00.165195) Error (criu/cr-dump.c:1720): Dump files (pid: 151) failed with -1
(00.241007) Error (criu/cr-dump.c:2111): Dumping FAILED.
"""
SAID = {
    "sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported": (
        "it has an internet socket open, and this node's CRIU is too old to save one with Linux 6.16 or newer: "
    ),
    "fsnotify.c:284): fsnotify: \tCan't dump that handle": "it watches a file or a folder outside of /job (inotify): ",
    "files-reg.c:1790): Can't lookup mount=397 for fd=3 path=/q": "it has /q open, which lies on no disk of its con",
    "filesystems.c:650): mqueue isn't empty": "it has a POSIX message queue (mq_open): use a pipe or a Unix socket",
    "files-reg.c:1009): Can't dump ghost file /job/big of 3221225472 size, increase limit": (
        "it holds /job/big open, a deleted file of 3221225472 bytes, and at most 1 GiB is saved of such a file: "
    ),
    "files-ext.c:94): Can't dump file 5 of that type [20666] (chr 195:255 /dev/nvidia0)": (
        "it has something open or mapped that cannot be saved (chr 195:255 /dev/nvidia0), such as a device"
    ),
    "tty.c:2035): tty: ctty inheritance detected sid/pgrp 6 (ctty pid_real 9 pty pid_real 8)": (
        "it has a process that has opened its terminal by the name /dev/tty, as an interactive shell does: run the "
    ),
    "infect-rpc.c:68): Command 66 for daemon failed with -1": (
        "it has memory that CRIU cannot read, such as the guard pages of threads with glibc 2.42: ask an admin"
    ),
    "mount.c:1): Can't lookup mount=16 for fd=-3 path=/anon_hugepage (deleted)": "it has memory in huge pages (M",
    "timer.c:329): Unable to convert the notify thread id 4711": "it has a timer that sends its signal to one thread (",
    "pagemap-cache.c:54): pagemap-cache: pmc_init: Can't allocate 30064246792 bytes": "it has reserved more addresses",
    "pagemap-cache.c:209): pagemap-cache: Can't read 9397's pagemap file: No such file or directory": (
        "it has reserved more addresses for memory than CRIU can look through: let the program reserve less"
    ),
    "proc_parse.c:1967): Unknown file lock: 7: LEASE  ACTIVE    READ  1415 08:01:1977585 0 EOF": (
        "it has a lease on a file (F_SETLEASE): release the lease"
    ),
    "sockets.c:888): Unknown socket family 40": "it has a socket open of a kind that cannot be saved: ",
    "pipes.c:514): The packetized mode for pipes is not supported yet": "it has a pipe in packet mode (O_DIRECT): make",
}


@pytest.mark.parametrize("said", SAID)
def test_what_criu_says_is_put_in_plain_words_with_what_to_do_and_the_words_of_criu(said: str) -> None:
    found = cannot_checkpoint(DUMP_LOG.format(error=f"(00.165190) Error (criu/{said}"), "")
    assert str(found).startswith(SAID[said])
    criu = " ".join(said.partition("): ")[2].split())
    assert str(found).endswith(f" (CRIU: {criu})")
    assert found.why is ReturnReason.UNSAVABLE


PASSES = {
    "seize.c:1): Unable to freeze cgroup /x (100 x 100ms attempts)": "it did not stand still in time, for exam",
    "sk-inet.c:188): inet: Connected TCP socket, consider using --tcp-established option.": "it has an open TCP conn",
    "seize.c:1): Unseizable non-zombie 123 found, state t, err -1/1": "it did not stand still in time, for exam",
    "seize.c:1): SEIZE 123: task not interrupted after seize": "it did not stand still in time, for example",
    "sk-netlink.c:77): netlink: The socket has data to read": "it has a netlink socket with an answer that it has not ",
    "sk-inet.c:99): inet: In-flight connection (l) for 2f": "it has a connection that waits to be accepted: accept",
}


@pytest.mark.parametrize("said", PASSES)
def test_what_may_pass_by_itself_is_not_called_lasting(said: str) -> None:
    found = cannot_checkpoint(DUMP_LOG.format(error=f"(00.1) Error (criu/{said}"), "")
    assert str(found).startswith(PASSES[said])
    assert found.why is ReturnReason.SAVE_FAILED


@pytest.mark.parametrize(
    "said",
    [
        "compel/arch/x86/src/lib/infect.c:424): Can't set FPU registers for 306: Bad address",
        "criu/cr-dump.c:203): 1236353 has rseq but kernel lacks get_rseq_conf feature",
        'criu/util.c:626): execvp("iptables-restore", ...) failed: No such file or directory',
    ],
)
def test_what_the_node_lacks_for_a_save_is_no_fault_of_the_job_and_sends_it_to_another_node(said: str) -> None:
    found = cannot_checkpoint(DUMP_LOG.format(error=f"(00.1) Error ({said}"), "")
    assert str(found).startswith("it cannot be saved by this node's CRIU, ")
    assert found.why is ReturnReason.NODE_LACKS


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "arch/x86/cpu.c:247): cpu: FPU feature required by image is not supported on host (0x2e7, on host 7)",
            ReturnReason.INCOMPATIBLE,
        ),
        ("pie/restorer.c:1): Can't restore 0x7f0000000000 mapping with 0xfffffffffffffff4", ReturnReason.INCOMPATIBLE),
        ("pie/restorer.c:1998): Can't restore posix timers -22", ReturnReason.CANNOT_RESTORE),
        ("cr-restore.c:1480): 56 killed by signal 9: Killed", ReturnReason.CANNOT_RESTORE),
    ],
)
def test_a_node_that_lacks_what_a_restore_needs_says_nothing_against_the_checkpoint(
    said: str, why: ReturnReason
) -> None:
    found = cannot_restore(
        f"(00.1)  77: Error (criu/{said}\n(00.2) Error (criu/cr-restore.c:1): Restoring FAILED.\n", ""
    )
    assert str(found) == f"CRIU cannot restore it: {said.partition('): ')[2]}"
    assert found.why is why


def test_a_process_that_cannot_be_stopped_is_told_with_what_to_do_and_counts_as_lasting() -> None:
    """Else a job whose saves hang on each node would never be held."""
    log = log_line(Reason("not all processes could be stopped within 20 s", lasts=False))
    found = cannot_checkpoint(log, "")
    assert str(found).startswith("it has a process that cannot be stopped, such as one that waits for a disk or a file")
    assert str(found).endswith("(CRIU: not all processes could be stopped within 20 s)")
    assert found.why is ReturnReason.UNSAVABLE


def test_what_is_not_in_the_table_stays_the_first_error_of_criu_in_one_clean_bounded_line() -> None:
    log = DUMP_LOG.format(error=f"(00.1) Error (criu/x.c:1): bad \x1b[31m\t{'x' * 5000}")
    found = cannot_checkpoint(log, "")
    assert re.fullmatch(r"CRIU cannot save it: bad \[31m x{100,400}", str(found))
    assert found.why is ReturnReason.SAVE_FAILED
    assert str(cannot_checkpoint("", "exit status\n 1")) == "CRIU cannot save it: exit status 1"


@pytest.mark.parametrize("lasts", [True, False])
def test_the_reasons_of_the_shim_are_plain_words_already_and_their_mark_tells_if_they_last(*, lasts: bool) -> None:
    reason = Reason("it holds 'it can be saved ' open", lasts)
    found = cannot_checkpoint(log_line(reason) + DUMP_LOG, "")
    assert Reason(str(found), found.why is ReturnReason.UNSAVABLE) == reason


@given(st.text())
def test_whatever_a_log_holds_the_reason_is_one_line(text: str) -> None:
    found = str(cannot_checkpoint(f"(00.1) Error (criu/x.c:1): {text}", text))
    assert found.isprintable()
    assert len(found) < 1000


def test_the_reason_is_the_first_error_that_matters() -> None:
    log = DUMP_LOG.format(error="(00.1) Error (criu/files-reg.c:1839): Can't create link remap for /job/x.")
    assert str(cannot_checkpoint(log, "")) == "CRIU cannot save it: Can't create link remap for /job/x."
    for log, reason in (
        ("(00.1) pie: 1: Error (criu/pie/restorer.c:1): no pages\n", "no pages"),
        ("(00.1)      7: Error (criu/mem.c:1): no memory\n", "no memory"),
        ("Warn  (criu/x.c:1): odd\n     1: Error (criu/files-reg.c:2353): no file\n", "no file"),
        ("(00.1) Running scripts\n", "it ended"),
    ):
        assert str(cannot_checkpoint(log, "it ended")) == f"CRIU cannot save it: {reason}"
