"""Checks of the agents of a node: their settings, their program, and the time that they have. Pure."""

from typing import Any

from gleaner.agent.privileged.common.slurm_job import USUAL_KILL_WAIT_S, parse_kill_wait_s
from gleaner.agent.timing.deadlines import SHUTDOWN_GRACE_S, exit_by_s, save_point_s
from gleaner.control.setup import machine_facts, readers
from gleaner.control.setup.facts import NOT_INSTALLED, Facts, Output, Unread, needed
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning

_NO_VERSION = "No such option"


def settings(facts: Facts) -> Judgement:
    """Judge the agents' settings."""
    path = machine_facts.agent_file()
    if isinstance(facts.agent, Unread) and facts.agent.is_denied:
        return fault(facts.agent.why, f"chmod 644 {path}")
    if isinstance(facts.agent, Unread):
        if NOT_INSTALLED in facts.agent.why:
            return fault(facts.agent.why, "install the package gleaner-node again, or with pip: gleaner-hpc[agent]")
        return fault(facts.agent.why, f"mend it; docs/admin/agent-settings.md has all keys ({path})")
    file = facts.file(path)
    if not isinstance(file, Unread) and file.is_writable_by_others:
        return fault(f"others may write to {path}", f"chmod 644 {path}")
    if refused := facts.refusal_to_account(path):
        return fault(refused.why, refused.remedy(f"chmod 644 {path}"))
    if facts.agent.margin_s <= 5 and facts.agent.shortest_slice_s <= 10:
        return warning(f"the times in {path} are the demo's", "leave out margin_s, shortest_slice_s and idle_s")
    return ok(f"{path} is in order")


def images_allowed(facts: Facts) -> Judgement:
    """Judge whether the images that may run are still the demo's."""
    found = needed(facts.agent).images_allowed
    if found == ("gleaner/*",):
        return warning("only the demo's images may run (gleaner/*)", "name your own in images_allowed of agent.toml")
    return ok(", ".join(found)[:80] or "only pushed images")


def program(facts: Facts) -> Judgement:
    """Judge whether Slurm's jobs find the agent program."""
    controls = facts.programs.get(readers.CONTROLS_AGENT, Unread("it was not looked for"))
    if isinstance(controls, Output):
        return ok(f"control starts {controls.stdout}")
    if controls.is_missing:
        return fault(
            controls.why,
            "ln -s /opt/gleaner/bin/glean-agent /usr/local/bin/, or mend [cluster] agent_command on control's machine",
        )
    said = needed(facts.programs.get("glean-agent", Unread("it was not looked for")))
    if said.status != 0:
        return fault("glean-agent is not on the PATH", "ln -s /opt/gleaner/bin/glean-agent /usr/local/bin/")
    return ok(f"at {said.complaint}")


def output_folder(facts: Facts) -> Judgement:
    """Judge the folder for what agents print: Slurm starts no agent whose output it cannot open."""
    found = facts.output_folder
    if isinstance(found, Unread) and found.is_missing:
        return fault(
            f"Slurm starts no agent here: {found.why}, for what agents print",
            "mend [cluster] agent_logs on control's machine, or make that folder, the service account's",
        )
    folder, account = needed(found), needed(facts.account)
    if account.uid != folder.uid and not folder.mode & 0o022:
        return fault(
            f"{account.name} cannot write what agents print to {folder.path} (mode {folder.mode:o})",
            f"chown {account.name} {folder.path}, or mend [cluster] agent_logs on control's machine",
        )
    return ok(f"{folder.path} takes what agents print")


def start(facts: Facts) -> Judgement:
    """Judge a start of the agent program as the service account, which Slurm's jobs are run as."""
    said = needed(facts.programs.get(readers.AGENT_START, Unread("it was not tried")))
    is_older = _NO_VERSION in f"{said.stdout}{said.stderr}"  # it has started, and knows no --version
    if said.status != 0 and not is_older:
        name = "the service account" if isinstance(facts.account, Unread) else facts.account.name
        return fault(
            f"{name} cannot start the agent program: {said.complaint}",
            "as root: chmod -R go+rX /opt/gleaner; or install it anew, with umask 022: its Python may be gone",
        )
    return ok("the service account can start the agent program")


def times(facts: Facts) -> Judgement:
    """Judge the agents' times against control's rounds: an agent that has too little time begins no job, and ends."""
    settings, health = needed(facts.agent), needed(facts.control).health
    round_s, least_s = _seconds(health.get("round_length_s")), _seconds(health.get("least_slice_s"))
    if round_s is None or least_s is None:
        return not_checked("control does not say how long its rounds are")
    wait_s, margin_s, slice_s = _kill_wait_s(facts), max(settings.margin_s, SHUTDOWN_GRACE_S), settings.shortest_slice_s

    def job_s(agent_s: float) -> float:
        """Return the time for a job before its save, in an agent that has so much time (`Agent._wants_work`)."""
        exit_s = exit_by_s(agent_s, now_s=0.0, kill_wait_s=wait_s)
        return save_point_s(exit_by_s=exit_s, margin_s=margin_s, save_s=0.0)

    needs_s = wait_s + margin_s + slice_s
    parts = f"{needs_s:g} s (KillWait {wait_s:g}, margin_s {margin_s:g}, shortest_slice_s {slice_s:g})"
    if job_s(round_s) <= slice_s:
        return fault(
            f"agents begin no job: they need {parts}, and control's rounds last {round_s:g} s",
            f"lower these in {machine_facts.agent_file()}, or raise [rounds] length_s on control's machine",
        )
    if job_s(least_s) < slice_s:
        return warning(
            f"control sends agents for {least_s:g} s, and they begin a job only with {parts}",
            f"set [rounds] shortest_slice_s to {needs_s:g} on control's machine, "
            f"or lower these in {machine_facts.agent_file()}",
        )
    return ok(f"agents begin a job with {parts}; control's rounds last {round_s:g} s")


def resources(facts: Facts) -> Judgement:
    """Judge the memory and the cores that jobs may use by the settings, against what the machine has."""
    found, path = needed(facts.agent), machine_facts.agent_file()
    if found.memory_mib and 0 < facts.memory_mib < found.memory_mib:
        return fault(
            f"jobs may use {found.memory_mib} MiB (memory_mib), and this machine has {facts.memory_mib}",
            f"lower memory_mib in {path}, or leave it out: jobs are killed",
        )
    if found.cpus and 0 < facts.cpus < found.cpus:
        return warning(
            f"jobs may use {found.cpus} cores (cpus), and this machine has {facts.cpus}",
            f"lower cpus in {path}, or leave it out: jobs wait for each other",
        )
    return ok(f"{found.cpus or 'all'} cores and {found.memory_mib or 'all'} MiB of the allocation")


def _seconds(value: Any) -> float | None:
    """Return a time that control has told; None if it is none: an older control does not tell it."""
    return float(value) if type(value) in {int, float} and 0 < value < float("inf") else None


def _kill_wait_s(facts: Facts) -> float:
    """Return the KillWait with which an agent reckons (`main._make_agent`). Without Slurm there is none."""
    set_s = needed(facts.agent).kill_wait_s
    if set_s is not None:
        return set_s
    said = facts.programs.get("scontrol config", Unread("it was not asked"))
    if isinstance(said, Unread):
        return 0.0 if said.is_missing else USUAL_KILL_WAIT_S
    wait_s = parse_kill_wait_s(said.stdout)
    return USUAL_KILL_WAIT_S if wait_s is None else wait_s
