"""Programs are run, and what they print is read, whatever it is."""

import os

import pytest

from gleaner.agent.privileged.common.system_programs import ProgramResult, run

LATIN = r"printf 'caf\351\000'; printf '\377no' >&2; exit 3"


def test_what_is_no_utf8_is_replaced_on_both_streams() -> None:
    assert run(["sh", "-c", LATIN], within_s=60) == ProgramResult(3, "caf\ufffd\ufffd", "\ufffdno")


def test_a_program_gets_its_input_its_environment_its_folder_and_its_descriptors() -> None:
    end, other = os.pipe()
    try:
        script = f"cat; echo $HERE; pwd; echo through >/proc/self/fd/{other}"
        environment = {"HERE": "here", "PATH": os.environ["PATH"]}
        done = run(
            ["sh", "-c", script], within_s=60, stdin="given\n", environment=environment, folder="/", pass_fds=(other,)
        )
        assert done == ProgramResult(0, "given\nhere\n/\n", "")
        assert os.read(end, 100) == b"through\n"
    finally:
        os.close(end)
        os.close(other)


def test_a_program_that_takes_too_long_is_ended_and_named() -> None:
    with pytest.raises(TimeoutError, match=r"sleep took more than 0\.1 s"):
        run(["sleep", "1000"], within_s=0.1)


@pytest.mark.parametrize(
    "words",
    [["/nowhere/program"], ["echo", "a\0b"], ["echo", "\ud800"], ["echo", "x" * 2**22]],
    ids=["missing", "NUL", "half a pair", "too long"],
)
def test_what_cannot_be_run_is_an_error_of_the_system(words: list[str]) -> None:
    with pytest.raises(OSError, match=r"\w"):
        run(words, within_s=60)
