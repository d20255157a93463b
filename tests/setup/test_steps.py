"""Setup changes nothing the second time, is taken back to the byte, and survives its end at any change."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import IS_WHOLE, examples

from gleaner.control.setup.steps import manifest as manifests
from gleaner.control.setup.steps import text_edits
from gleaner.control.setup.steps.changes import (
    MakeFolder,
    Ownership,
    ProgramCheck,
    RemoveFolder,
    RunProgram,
    SetupRefused,
)
from gleaner.control.setup.steps.engine import Installer, plan_all
from gleaner.control.setup.steps.machine import MachineReader, MachineWriter
from gleaner.control.setup.steps.step_types import (
    AccountStep,
    EditStep,
    FileStep,
    FolderStep,
    LinkStep,
    ProgramStep,
    SetupStep,
    account_plan,
)

ROLE = "node"
ANSWERS = {"account": "gleaner"}
SETTINGS, PROGRAM, EDITED, DEEP = "/etc/gleaner/agent.toml", "/etc/unit", "/etc/slurm.conf", "/opt/a/b/c"
STEPS: tuple[SetupStep, ...] = (
    FolderStep("/srv/data", Ownership(0o700, os.geteuid(), os.getegid()), is_data=True),
    FileStep(SETTINGS, b"ours = 1\n", is_settings=True),
    FileStep(PROGRAM, b"program", Ownership(0o755, os.geteuid(), os.getegid())),
    FileStep(DEEP, b"deep"),
    EditStep(EDITED, text_edits.with_missing(("one", "two"))),
    LinkStep("/etc/link", "/opt/a/b/c"),
)


class Killed(BaseException):
    """The end of a run, as Ctrl-C or a kill brings it."""


@contextmanager
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp())
    try:
        yield place
    finally:
        shutil.rmtree(place)


def installer(root: Path, most_changes: int | None = None) -> Installer:
    """Return a run that ends before its change number `most_changes`."""
    said: list[str] = []

    def watch(text: str) -> None:
        said.append(text)
        if most_changes is not None and len(said) > most_changes:
            raise Killed(text)

    return Installer(MachineReader(str(root)), ROLE, watch)


def tree(root: Path) -> dict[str, tuple[int, object]]:
    """Return all that is in a folder: the mode, and the content, target or kind."""
    found: dict[str, tuple[int, object]] = {}
    for path in sorted(root.rglob("*")):
        what: object = "folder"
        if path.is_symlink():
            what = ("link", str(path.readlink()))
        elif path.is_file():
            what = path.read_bytes()
        found[str(path.relative_to(root))] = (path.lstat().st_mode, what)
    return found


def pending(root: Path, steps: Sequence[SetupStep] = STEPS) -> list[str]:
    machine = MachineReader(str(root))
    return [plan.title for plan in plan_all(steps, machine, manifests.load(machine), ROLE).plans]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40).map(str.encode)
lines = st.lists(st.sampled_from(["one", "two", "# x", "", "Key=1", "\r"]), max_size=5).map("\n".join).map(str.encode)
contents = {
    "etc/gleaner/agent.toml": texts | st.just(b"ours = 1\n"),
    "etc/unit": texts | st.just(b"program"),
    "etc/slurm.conf": lines | st.binary(max_size=20).map(lambda some: some.replace(b"\0", b"")),
    "etc/gleaner/other": texts,
    "srv/data/kept": texts,
}
files = st.fixed_dictionaries(
    {}, optional={name: st.tuples(inner, st.sampled_from([0o644, 0o755, 0o600])) for name, inner in contents.items()}
)


def lay(root: Path, there: dict[str, tuple[bytes, int]]) -> None:
    (root / "etc").mkdir()
    for name, (content, mode) in there.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


@pytest.mark.slow
@settings(max_examples=examples(48), deadline=None)
@given(there=files)
def test_a_second_run_changes_nothing_and_taking_back_leaves_what_was_there(there) -> None:
    with folder() as root:
        lay(root, there)
        before = tree(root)
        installer(root).apply(STEPS, ANSWERS)
        after = tree(root)
        assert (after["etc/unit"][1], after["opt/a/b/c"][1]) == (b"program", b"deep")
        assert {b"one", b"two"} <= set((root / "etc/slurm.conf").read_bytes().split(b"\n"))
        assert pending(root) == []
        installer(root).apply(STEPS, ANSWERS)
        assert tree(root) == after
        installer(root).take_back(purge=False)
        assert tree(root) == before


@pytest.mark.slow
@settings(max_examples=examples(48), deadline=None)
@given(there=files, first=st.integers(0, 30), again=st.integers(0, 30), completes=st.booleans())
def test_a_run_that_ends_at_any_change_is_completed_or_taken_back(there, first, again, completes) -> None:
    there = {"etc/gleaner/other": (b"", 0o644)} | there  # else a folder that is ours is left without a manifest
    with folder() as root:
        lay(root, there)
        before = tree(root)
        end(root, first, lambda run: run.apply(STEPS, ANSWERS))
        if completes:
            end(root, again, lambda run: run.apply(STEPS, ANSWERS))
            installer(root).apply(STEPS, ANSWERS)
            assert pending(root) == []
        end(root, again, lambda run: run.take_back(purge=False))
        installer(root).take_back(purge=False)
        assert tree(root) == before


def end(root: Path, number: int, what) -> None:
    with suppress(Killed):
        what(installer(root, number))


def test_what_was_changed_since_stays_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    installer(tmp_path).apply(STEPS, ANSWERS)
    (tmp_path / "etc/gleaner/agent.toml").write_text("the admin's")
    (tmp_path / "etc/unit").write_text("the admin's, too")
    (tmp_path / "etc/slurm.conf").write_text("more\n" + (tmp_path / "etc/slurm.conf").read_text() + "yet more\n")
    (tmp_path / "srv/data/checkpoint").touch()
    assert pending(tmp_path) == []
    said = installer(tmp_path).take_back(purge=False)
    assert [line.partition(" stays")[0] for line in said] == [PROGRAM, SETTINGS, "/srv/data"]
    assert (tmp_path / "etc/slurm.conf").read_text() == "more\nyet more\n"
    assert {name for name in tree(tmp_path) if name.endswith(("json", "new", "gleaner"))} == {"etc/gleaner"}


def test_purge_removes_the_data_too(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    installer(tmp_path).apply(STEPS, ANSWERS)
    (tmp_path / "srv/data/deeper").mkdir()
    (tmp_path / "srv/data/deeper/checkpoint").touch()
    assert installer(tmp_path).take_back(purge=True) == ()
    assert tree(tmp_path).keys() == {"etc"}


def test_a_folder_is_not_made_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o750)
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/data").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path)
    with pytest.raises(SetupRefused, match="/srv/data is a symbolic link: put a folder there"):
        installer(tmp_path).apply(STEPS, ANSWERS)
    assert tree(tmp_path) == before
    writer = MachineWriter(MachineReader(str(tmp_path)), lambda _: None)
    for action in (MakeFolder("/srv/data", Ownership(0o777)), RemoveFolder("/srv/data", with_content=True)):
        with pytest.raises(SetupRefused, match="/srv/data is a symbolic link"):  # made after the plan
            writer.do(action)
    assert tree(tmp_path) == before


def test_purge_removes_nothing_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    installer(tmp_path).apply(STEPS, ANSWERS)
    (tmp_path / "srv/data").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/checkpoint").touch()
    (tmp_path / "srv/data").symlink_to(tmp_path / "elsewhere")
    assert installer(tmp_path).take_back(purge=True) == ("/srv/data stays: it is a symbolic link now",)
    assert tree(tmp_path).keys() == {"etc", "elsewhere", "elsewhere/checkpoint", "srv", "srv/data"}


def test_a_new_version_of_a_file_of_ours_is_written_over_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for content in (b"one", b"two"):
        step = FileStep(PROGRAM, content, restarts=("gleaner-control",))
        installer(tmp_path).apply([step], ANSWERS)
        assert (tmp_path / "etc/unit").read_bytes() == content
    assert manifests.load(MachineReader(str(tmp_path))).restarts == ("gleaner-control",)
    installer(tmp_path).take_back(purge=False)
    assert tree(tmp_path).keys() == {"etc"}


def test_what_two_roles_have_in_common_stays_until_both_are_gone(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for role in ("control", "node"):
        Installer(MachineReader(str(tmp_path)), role, lambda _: None).apply(STEPS, ANSWERS)
    Installer(MachineReader(str(tmp_path)), "control", lambda _: None).take_back(purge=True)
    assert pending(tmp_path) == []
    Installer(MachineReader(str(tmp_path)), "node", lambda _: None).take_back(purge=False)
    assert tree(tmp_path).keys() == {"etc"}


def test_the_whole_of_an_image_in_the_making_does_not_run() -> None:
    image, folder_of_one, here = MachineReader("/"), MachineReader("/image/"), MachineReader()
    assert [one.is_live for one in (image, folder_of_one, here)] == [False, False, True]
    assert [str(one.at("/etc")) for one in (image, folder_of_one, here)] == ["/etc", "/image/etc", "/etc"]
    assert image.has_systemd is False


def test_planning_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/unit").write_text("foreign")
    before = tree(tmp_path)
    assert len(pending(tmp_path)) == len(STEPS)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("/dev/null"), "is a symbolic link"),
        (lambda path: path.mkdir(), "is no plain file"),
        (lambda path: path.write_bytes(b"\0"), "is no text"),
        (lambda path: path.write_text(f"{text_edits.BEGIN}\n"), "is missing"),
    ],
)
def test_what_cannot_be_edited_is_refused_before_anything_is_changed(tmp_path: Path, make, said: str) -> None:
    (tmp_path / "etc").mkdir()
    make(tmp_path / "etc/slurm.conf")
    before = tree(tmp_path)
    with pytest.raises(SetupRefused, match=said):
        installer(tmp_path).apply(STEPS, ANSWERS)
    assert tree(tmp_path) == before


def test_two_runs_at_once_do_not_write_over_each_other(tmp_path: Path) -> None:
    place = tmp_path / "etc/gleaner"
    place.mkdir(parents=True)
    held = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SetupRefused, match="another glean setup runs"):
            installer(tmp_path).apply(STEPS, ANSWERS)
    finally:
        os.close(held)
    assert tree(tmp_path).keys() == {"etc", "etc/gleaner"}


def test_a_manifest_that_is_broken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc/gleaner").mkdir(parents=True)
    (tmp_path / "etc/gleaner/setup.json").write_text("{")
    (tmp_path / "etc/gleaner/setup.json").chmod(0o600)
    with pytest.raises(SetupRefused, match="is broken"):
        installer(tmp_path)


def test_a_program_runs_when_its_check_says_so_and_after_an_interruption(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    step = ProgramStep(
        "mark",
        ProgramCheck(("test", "-e", str(mark))),
        (("touch", str(mark)),),
        (("rm", str(mark)),),
        works_in_root=True,
    )
    (tmp_path / "etc").mkdir()
    end(tmp_path, 3, lambda run: run.apply([step], ANSWERS))
    assert not mark.exists()
    assert len(pending(tmp_path, [step])) == 1
    installer(tmp_path).apply([step], ANSWERS)
    assert (mark.exists(), pending(tmp_path, [step])) == (True, [])
    installer(tmp_path).take_back(purge=False)
    assert tree(tmp_path).keys() == {"etc"}


def test_a_program_that_fails_is_one_line_and_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    step = ProgramStep("fails", ProgramCheck(("false",)), (("sh", "-c", "echo why >&2; exit 3"),), works_in_root=True)
    for _ in range(2):
        with pytest.raises(SetupRefused, match="failed: why"):
            installer(tmp_path).apply([step], ANSWERS)


USERS = {"root": ["root", "x", "0"], "bob": ["bob", "x", "4200", "4200"]}


def test_the_numbers_of_an_account_must_be_free() -> None:
    assert account_plan(AccountStep("bob", 4200, 4200), USERS, {}, ()) is None
    for wanted, said in (
        (AccountStep("bob", 1, 4200), "the account bob has the number 4200 here, not 1"),
        (AccountStep("bob", 4200, 1), "the account bob is in the group number 4200 here, not 1"),
        (AccountStep("new", 4200, 1), "bob's"),
    ):
        with pytest.raises(SetupRefused, match=said):
            account_plan(wanted, USERS, {}, ())
    for name in ("bob", "new"):
        with pytest.raises(SetupRefused, match=f"the group {name} has the number 5 here, not 4200"):
            account_plan(AccountStep(name, 4200, 4200), USERS, {name: [name, "x", "5", ""]}, ())
    with pytest.raises(SetupRefused, match="the group 4200 of the account bob is staff here"):
        account_plan(AccountStep("bob", 4200, 4200), USERS, {"staff": ["staff", "x", "4200", ""]}, ())
    with pytest.raises(SetupRefused, match="group number 5 is tty's"):
        account_plan(AccountStep("new", 7, 5), USERS, {"tty": ["tty", "x", "5"]}, ())
    plan = account_plan(AccountStep("new", 7, 5), USERS, {}, ())
    assert plan is not None
    assert [action.words[0] for action in plan.actions if isinstance(action, RunProgram)] == ["groupadd", "useradd"]


@given(text=lines.map(bytes.decode) | st.text(max_size=60))
def test_lines_of_ours_are_taken_out_to_the_letter(text: str) -> None:
    edited = text_edits.with_block(text, ["one"])
    assert text_edits.without(edited) == text
    assert text_edits.without(edited + "more\n") == text + ("" if text.endswith("\n") or not text else "\n") + "more\n"


@pytest.mark.parametrize("there", [None, (b"one", 0o600), (b"foreign", 0o644)], ids=["nothing", "mode", "content"])
def test_an_upgrade_that_ends_at_any_change_is_completed_or_taken_back(tmp_path: Path, there) -> None:
    """Neither an old file of ours nor one of before is taken for somebody's change."""
    old, new = (
        [FileStep(PROGRAM, content, Ownership(0o755, os.geteuid(), os.getegid()))] for content in (b"one", b"2")
    )
    for number, completes in (
        (number, completes) for number in range(8 if IS_WHOLE else 5) for completes in (True, False)
    ):
        root = tmp_path / f"{number}-{completes}"
        root.mkdir()
        lay(root, {} if there is None else {"etc/unit": there})
        before = tree(root)
        end(root, number, lambda run: run.apply(old, ANSWERS))
        if completes:
            installer(root).apply(old, ANSWERS)
        end(root, number, lambda run: run.apply(new, ANSWERS))
        if completes:
            installer(root).apply(new, ANSWERS)
            assert (root / "etc/unit").read_bytes() == b"2"
        end(root, number, lambda run: run.take_back(purge=False))
        installer(root).take_back(purge=False)
        assert tree(root).keys() - {"etc/gleaner"} == before.keys()  # a folder that is ours is left without a manifest
        assert {name: tree(root)[name] for name in before} == before
