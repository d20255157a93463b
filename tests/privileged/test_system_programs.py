"""Programs are run, and what they print is read, whatever it is."""

import pytest

from gleaner.agent.privileged.common.system_programs import ProgramResult, run

LATIN = r"printf 'caf\351\000'; printf '\377no' >&2; exit 3"


def test_what_is_no_utf8_is_replaced_on_both_streams() -> None:
    assert run(["sh", "-c", LATIN], within_s=60) == ProgramResult(3, "caf\ufffd\ufffd", "\ufffdno")


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
