"""`glean doctor`: each check of a role, its name, and the findings of all of them. Pure; `readers` reads the facts."""

from collections.abc import Callable
from dataclasses import dataclass

from gleaner.control.input_errors import one_line
from gleaner.control.setup import (
    accounting_checks,
    agent_checks,
    control_checks,
    machine_checks,
    node_checks,
    slurm_admin_checks,
    slurm_checks,
    storage_checks,
    submission_checks,
)
from gleaner.control.setup.facts import Facts, MachineRole, NotRead
from gleaner.control.setup.finding import CheckState, Finding, Judgement


@dataclass(frozen=True, slots=True)
class Check:
    """A check, and the machines that it is for."""

    name: str
    judge: Callable[[Facts], Judgement]
    roles: tuple[MachineRole, ...]


_ALL = (MachineRole.CONTROL, MachineRole.NODE, MachineRole.CLIENT)
_MINE = (MachineRole.CONTROL, MachineRole.CLIENT)
_WORKS = (MachineRole.CONTROL, MachineRole.NODE)
_CONTROL = (MachineRole.CONTROL,)
_NODE = (MachineRole.NODE,)

CHECKS = (
    Check("settings", machine_checks.settings, _MINE),
    Check("settings in force", control_checks.settings_in_force, _CONTROL),
    Check("agents' settings", agent_checks.settings, _NODE),
    Check("agents' times", agent_checks.times, _NODE),
    Check("agents' resources", agent_checks.resources, _NODE),
    Check("allowed images", agent_checks.images_allowed, _NODE),
    Check("rounds", machine_checks.rounds, _CONTROL),
    Check("times in settings", control_checks.times_fit, _CONTROL),
    Check("agents' program", machine_checks.agent_command, _CONTROL),
    Check("service account", machine_checks.account, _WORKS),
    Check("clock", machine_checks.clock_is_synchronised, _ALL),
    Check("clock against control", machine_checks.clock_is_controls, _ALL),
    Check("control", machine_checks.control_answers, _ALL),
    Check("version", machine_checks.version, _ALL),
    Check("certificate", machine_checks.certificate, _ALL),
    Check("certificate's key", machine_checks.key_of_certificate, _CONTROL),
    Check("key for secrets", machine_checks.secret_key, _CONTROL),
    Check("steps of control", machine_checks.steps, _CONTROL),
    Check("looks at Slurm", machine_checks.polls, _CONTROL),
    Check("database", storage_checks.schema, _CONTROL),
    Check("database's disk", storage_checks.database_disk, _CONTROL),
    Check("queue's writes", storage_checks.queue_writes, _CONTROL),
    Check("audit file", control_checks.audit_file, _CONTROL),
    Check("token", machine_checks.token, _MINE),
    Check("munge", machine_checks.munge, _ALL),
    Check("services", machine_checks.units, _WORKS),
    Check("agents' groups", machine_checks.groups_of_agents, _CONTROL),
    Check("Slurm admin service", slurm_admin_checks.service, _CONTROL),
    Check("Slurm admin's settings", slurm_admin_checks.settings_file, _CONTROL),
    Check("Slurm admin's rights", slurm_admin_checks.rights, _CONTROL),
    Check("Slurm admin's epoch", slurm_admin_checks.epoch, _CONTROL),
    Check("Slurm admin's heartbeat", slurm_admin_checks.heartbeat, _CONTROL),
    Check("dead man's switch", slurm_admin_checks.dead_mans_switch, _CONTROL),
    Check("storage", storage_checks.folder, _WORKS),
    Check("storage's owner", storage_checks.owner, _WORKS),
    Check("storage's writes", storage_checks.writes, _WORKS),
    Check("storage's space", storage_checks.space, _WORKS),
    Check("storage is shared", storage_checks.is_controls, _NODE),
    Check("work folder", storage_checks.work_folder, _NODE),
    Check("containers' folder", storage_checks.containers_folder, _NODE),
    Check("temporary folder", storage_checks.temporary_folder, _NODE),
    Check("kernel", node_checks.kernel, _NODE),
    Check("CRIU", node_checks.criu, _NODE),
    Check("CRIU's check", node_checks.criu_check, _NODE),
    Check("CRIU's options", node_checks.criu_options, _NODE),
    Check("tar and gzip", node_checks.archive_programs, _NODE),
    Check("agents' output", agent_checks.output_folder, _NODE),
    Check("agent program", agent_checks.program, _NODE),
    Check("agent's start", agent_checks.start, _NODE),
    Check("runc", node_checks.runc, _NODE),
    Check("control groups", node_checks.cgroups, _NODE),
    Check("SELinux", node_checks.selinux, _NODE),
    Check("system Python", node_checks.system_python, _NODE),
    Check("Docker", node_checks.docker, _NODE),
    Check("Docker's group", node_checks.docker_group, _NODE),
    Check("node helper", node_checks.helper, _NODE),
    Check("runtime", node_checks.runtime, _NODE),
    Check("privileged settings", node_checks.privileged_settings, _NODE),
    Check("privileged programs", node_checks.programs, _NODE),
    Check("handshake folder", node_checks.handshakes, _NODE),
    Check("user jobs' key", node_checks.user_jobs_key, _NODE),
    Check("watchdog", node_checks.watchdog, _NODE),
    Check("Epilog's file", node_checks.epilog, _NODE),
    Check("Slurm's programs", slurm_checks.programs, _WORKS),
    Check("Slurm's JSON", node_checks.slurm_json, _NODE),
    Check("slurmd", node_checks.slurmd, _NODE),
    Check("slurmd's limits", node_checks.slurmd_limits, _NODE),
    Check("SelectType", slurm_checks.select_type, _CONTROL),
    Check("SchedulerType", slurm_checks.scheduler, _CONTROL),
    Check("PreemptType", slurm_checks.preempt_type, _CONTROL),
    Check("PreemptMode", slurm_checks.preempt_mode, _CONTROL),
    Check("PreemptExemptTime", slurm_checks.exempt_time, _CONTROL),
    Check("PreemptParameters", slurm_checks.preempt_parameters, _CONTROL),
    Check("Epilog", slurm_checks.epilog, _CONTROL),
    Check("accounting", slurm_checks.accounting, _CONTROL),
    Check("KillWait", slurm_checks.kill_wait, _CONTROL),
    Check("default memory", slurm_checks.default_memory, _CONTROL),
    Check("partition", slurm_checks.partition, _CONTROL),
    Check("partition's limit", slurm_checks.limit_of_partition, _CONTROL),
    Check("partition's users", submission_checks.admittance, _CONTROL),
    Check("tiers", slurm_checks.tiers, _CONTROL),
    Check("nodes' memory", slurm_checks.memory, _CONTROL),
    Check("nodes", slurm_checks.nodes, _CONTROL),
    Check("agents", slurm_checks.agents, _CONTROL),
    Check("reservations", submission_checks.reservations, _CONTROL),
    Check("trial submission", submission_checks.trial, _CONTROL),
    Check("PrivateData", submission_checks.private_data, _CONTROL),
    Check("SchedulerParameters", submission_checks.scheduling, _CONTROL),
    Check("Slurm's request limit", submission_checks.request_rate, _CONTROL),
    Check("MinJobAge", submission_checks.ended_jobs, _CONTROL),
    Check("power saving", submission_checks.power_saving, _CONTROL),
    Check("slurmctld's start", submission_checks.start_order, _CONTROL),
    Check("account", accounting_checks.account, _CONTROL),
    Check("QOS", accounting_checks.qos, _CONTROL),
    Check("Slurm's limits", accounting_checks.limits, _CONTROL),
)


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return the result of each check for this role of the machine."""
    return tuple(_finding(check, facts) for check in CHECKS if facts.role in check.roles)


def _finding(check: Check, facts: Facts) -> Finding:
    try:
        found = check.judge(facts)
    except NotRead as error:
        return Finding(check.name, CheckState.NOT_CHECKED, one_line(str(error)))
    except Exception as error:  # the other checks still tell what they know
        said = f"this check itself failed: {type(error).__name__}: {error}"
        return Finding(check.name, CheckState.NOT_CHECKED, one_line(said)[:200], "please report this")
    return Finding(check.name, found.state, one_line(found.seen) or "no text", one_line(found.to_do))
