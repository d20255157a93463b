"""Settings: a wrong one is named with its file, line and key; `glean config` shows all and no secret."""

import tomllib
from pathlib import Path

import pytest

from gleaner.control.cli import app
from gleaner.control.cli.config import without_password
from gleaner.control.effective_settings import load_settings


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gleaner.toml"
    path.write_text("")
    monkeypatch.setenv("GLEANER_SETTINGS", str(path))
    return path


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line of `glean config` on stderr for wrong settings: nothing on stdout, exit code 2."""
    assert app.run(["config"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("glean: ")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("glean: ").rstrip()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[queue]\nlease_s = 10\n", "{file}, line 1: [queue]: lease_s must be at least twice heartbeat_s"),
        (
            "[groups]\nentitled = {physics = 70, chemistry = 40}\n",
            "{file}, line 1: [groups]: entitled adds up to 110 per cent; the groups together can have 100 at most",
        ),
        (
            "[entitlements]\nentitled = {physics = 60, chemistry = 50}\n",
            "{file}, line 1: [entitlements]: entitled adds up to 110 %; each share is at least 0, all together at most",
        ),
        ("[entitlements]\nmode = 'on'\n", "{file}, line 1: [entitlements]: mode is 'on', but no partitions are named"),
        ("[groups]\nothers = 'some'\n", "{file}, line 2: [groups] others must be 'equal' or 'none', found 'some'"),
        (
            "[groups]\nentitled = {physics = 50}\nfrom_slurm = true\n",
            "{file}, line 1: [groups]: entitled and from_slurm contradict each other: the parts come from here or from",
        ),
        ("[quotas.default]\nuser = {cors = 3}\n", "{file}, line 2: [quotas.default.user] unknown key 'cors', did you"),
        ("[[munge.allow]]\nusr = 'ada'\n", "{file}, line 2: [munge.allow.0] unknown key 'usr', did you mean 'user'? A"),
        ("[queue]\nlog_mib_per_job = 9223372036854775807\n", "{file}, line 2: [queue] log_mib_per_job must be at most"),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_its_line(
    text: str, said: str, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(text)
    assert refusal(capsys).startswith(said.format(file=settings_file))


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("GLEANER_ROUNDS__LENGTH_S", "5", "[rounds] length_s must be at least 30, found '5'"),
        ("GLEANER_ROUNDS__LENGHT_S", "60", "[rounds] unknown key 'lenght_s', did you mean 'length_s'?"),
        ("GLEANER_CLEINT__URL", "http://localhost", "unknown key 'cleint', did you mean 'client'?"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named_by_its_variable(
    variable: str,
    value: str,
    said: str,
    settings_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(capsys).startswith(f"environment variable {variable}: {said}")


def test_a_named_file_that_is_not_there_is_an_error(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.unlink()
    assert refusal(capsys) == f"{settings_file}: no such settings file; GLEANER_SETTINGS names it"


def test_the_variables_of_the_agent_are_its_own(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLEANER_AGENT_WORK", "/tmp")
    monkeypatch.setenv("GLEANER_AGENT_DOCKER__URL", "unix:///tmp/docker.sock")
    assert load_settings().rounds.length_s == 3600


@pytest.mark.parametrize("table", ["groups", "entitlements"])
def test_shares_that_are_more_than_all_by_rounding_only_are_taken(table: str, settings_file: Path) -> None:
    third = 100 / 3 + 1e-14
    settings_file.write_text(f"[{table}]\nentitled = {{physics = {third}, chemistry = {third}, biology = {third}}}\n")
    load_settings()


def test_config_prints_toml_that_gives_the_same_settings_again(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_file.write_text(
        "[rounds]\nlength_s = 600\nshortest_slice_s = 60\n[cluster]\naccount = 'a\"b'\n"
        "[groups]\nentitled = {physics = 50}\n"
    )
    monkeypatch.setenv("GLEANER_ROUNDS__POLL_S", "7")
    assert app.run(["config"]) == 0
    printed = capsys.readouterr().out
    assert "length_s = 600.0  # file" in printed
    assert "poll_s = 7.0  # GLEANER_ROUNDS__POLL_S" in printed
    assert "pending_limit_s = 300.0  # default" in printed
    before = load_settings()
    monkeypatch.delenv("GLEANER_ROUNDS__POLL_S")
    settings_file.write_text(printed)
    assert tomllib.loads(printed)["cluster"]["account"] == 'a"b'
    assert load_settings() == before


def test_config_shows_no_password(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file.write_text("[queue]\nurl = 'postgresql+psycopg://gleaner:hunter2@db/gleaner?password=hunter2'\n")
    for arguments in (["config"], ["config", "--json"]):
        assert app.run(arguments) == 0
        printed = capsys.readouterr().out
        assert "hunter2" not in printed
        assert "postgresql+psycopg://gleaner:***@db/gleaner?password=***" in printed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/gleaner/queue.db", "sqlite:////var/lib/gleaner/queue.db"),
        ("postgresql://u:p@ss/w@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u@host/db", "postgresql://u@host/db"),
        ("https://control.example.org:8642", "https://control.example.org:8642"),
    ],
)
def test_a_url_is_shown_without_its_password_only(url: str, shown: str) -> None:
    assert without_password(url) == shown
