"""The Slurm backend when Slurm misbehaves, and what it hands over. The programs are faked scripts on the PATH."""

import os
from datetime import datetime
from pathlib import Path

import pytest
from tests.slurm import slurm_harness
from tests.slurm.slurm_harness import FakedSlurm, Place

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(faked: FakedSlurm, tmp_path: Path) -> Place:
    return slurm_harness.slurm(tmp_path, logs=tmp_path, account="gleaner")


@pytest.fixture
def impatient(faked: FakedSlurm, tmp_path: Path) -> Place:
    """The same, for a call that does hang."""
    return slurm_harness.slurm(tmp_path, logs=tmp_path, timeout_s=5, account="gleaner")


def test_a_slurm_that_is_away_is_unavailable_in_one_line(slurm: Place, faked: FakedSlurm) -> None:
    faked.switch("away")
    for ask in (slurm.look, lambda: slurm.submit(slurm.request())):
        with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: .*Unable to contact slurm controller"):
            ask()
    faked.heal("away")
    assert len(slurm.look().nodes) == 3


def test_an_sbatch_that_takes_the_job_and_never_answers_makes_no_second_agent(
    impatient: Place, faked: FakedSlurm
) -> None:
    impatient.look()
    request = impatient.request()
    faked.switch("mute")
    id_ = impatient.submit(request)
    faked.heal("mute")
    assert [(agent.name, agent.id) for agent in impatient.look().jobs] == [(request.name, id_)]
    assert len(faked.calls("sbatch")) == 1


def test_a_refusal_names_what_was_asked_for_and_is_not_called_unavailable(slurm: Place, faked: FakedSlurm) -> None:
    faked.switch("refuse", "Invalid account or account/partition combination specified")
    with pytest.raises(ClusterError) as refused:
        slurm.submit(slurm.request())
    assert not isinstance(refused.value, ClusterUnavailable)
    assert str(refused.value) == (
        "Slurm refuses: sbatch says 'Invalid account or account/partition combination specified' "
        "(partition gleaner, account gleaner, qos gleaner)"
    )


def test_an_answer_that_cannot_be_read_may_have_been_a_yes(
    slurm: Place, faked: FakedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.look()
    chatty = tmp_path / "chatty"
    chatty.mkdir()
    (chatty / "sbatch").write_text(f'#!/bin/sh\n{faked.folder}/sbatch "$@" >/dev/null; echo "plugin: hello"\n')
    (chatty / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{chatty}:{os.environ['PATH']}")
    request = slurm.request()
    id_ = slurm.submit(request)
    assert [(agent.name, agent.id) for agent in slurm.look().jobs] == [(request.name, id_)]


def test_missing_programs_are_named(slurm: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ClusterUnavailable, match=r"sinfo cannot be run .*; install Slurm's client programs here"):
        slurm.look()


def test_a_partition_that_slurm_does_not_know_is_named(faked: FakedSlurm, tmp_path: Path) -> None:
    place = slurm_harness.slurm(tmp_path, logs=tmp_path, partition="nope")
    with pytest.raises(ClusterError, match=r"no node in a partition 'nope'; see \[cluster\] partition"):
        place.look()


def test_with_owners_one_look_still_asks_twice_and_for_everybodys_jobs(faked: FakedSlurm, tmp_path: Path) -> None:
    """Without owners, Slurm is asked for the agents' jobs alone, of which Slurm keeps a list at hand."""
    for owners, partitions, only_own in (((), "gleaner", True), (("shared", "long"), "shared,long,gleaner", False)):
        cluster = SlurmCluster(ClusterSettings(timeout_s=10), tmp_path, owners)
        before = {program: len(faked.calls(program)) for program in ("sinfo", "squeue")}
        assert set(cluster.read(1.0).nodes) == {"n1", "n2", "n3"}
        for program, count in before.items():
            (call,) = faked.calls(program)[count:]
            assert f"--partition={partitions}" in call["words"]
        assert ("--me" in faked.calls("squeue")[-1]["words"]) is only_own


def test_the_token_is_neither_in_arguments_nor_script_nor_environment(
    slurm: Place, faked: FakedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    request = slurm.request()
    request.token_file.parent.mkdir(parents=True)
    request.token_file.write_text("a-very-secret-token")
    slurm.submit(request)
    (call,) = faked.calls("sbatch")
    assert "a-very-secret-token" not in str(call)
    assert "hunter2" not in str(call)
    assert str(request.token_file) in call["input"]
    assert set(call["environment"]) - {"PWD", "SHLVL", "_", "LC_CTYPE"} == {"PATH", "LC_ALL", "TZ"}
    assert "--export=NIL" in call["words"]


def test_the_deadline_is_the_same_instant_in_every_time_zone(
    slurm: Place, faked: FakedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Chatham")
    request = slurm.request()
    slurm.submit(request)
    (call,) = faked.calls("sbatch")
    (deadline,) = [word.partition("=")[2] for word in call["words"] if word.startswith("--deadline=")]
    assert call["environment"]["TZ"] == "UTC"
    assert datetime.fromisoformat(f"{deadline}+00:00").timestamp() == request.end_s + 60
