"""Control's facts with Slurm's settings that keep agents off, or let them or regular jobs wait."""

from dataclasses import replace

from tests.setup import healthy as h

from gleaner.control.settings import EntitlementSettings, RoundSettings
from gleaner.control.setup.facts import TRIAL, Facts, Output, Unread

PARTITIONS, NODES, ACCOUNTS = "scontrol partitions", "scontrol nodes", "sacctmgr accounts"
NO_NODE = "allocation failure: Requested node configuration is not available"
MANY_NODES = "".join(
    f"NodeName=node{number} CPUTot=8 RealMemory=4000 State={'DOWN' if number == 7 else 'IDLE'}\n"
    for number in range(1, 41)
)
ENTITLED = h.settings(entitlements=EntitlementSettings(mode="on", partitions=("shared",)))


AGENT = "gleaner-1800000000-5eed5eed"


def waiting(*reasons: str, more: str = "") -> Facts:
    """Return control's facts where agents wait for these reasons."""
    said = "".join(f"PENDING|{AGENT}|{reason}\n" for reason in reasons)
    return h.program(h.control(), "squeue agents", Output(0, said + more))


RESERVED = "ReservationName=old{} StartTime=1799000000 EndTime=1801000000 Nodes={} State={}\n"


def reserved(*nodes: str, state: str = "ACTIVE", more: str = "") -> Facts:
    """Return control's facts where Slurm has a reservation of each of these nodes."""
    said = "".join(RESERVED.format(number, some, state) for number, some in enumerate(nodes))
    return h.program(h.control(), "scontrol reservations", Output(0, said + more))


def limited(*rows: str, cluster: str = "one", partition: str = "", qos: str = "gleaner||||||||||") -> Facts:
    """Return control's facts with these limits of the account and its users."""
    said = "".join(f"{cluster}|{partition}|{row}\n" for row in rows)
    facts = h.program(h.control(), "sacctmgr limits", Output(0, said))
    return h.program(facts, "sacctmgr qos limits", Output(0, f"{qos}\n"))


def refused(said: str, facts: Facts | None = None) -> Facts:
    """Return control's facts where Slurm refuses an agent with these words."""
    return h.program(facts or h.control(), TRIAL, Output(1, "", f"{said}\n"))


def private(level: str) -> Facts:
    return h.program(h.slurm("PrivateData             = none", "PrivateData = nodes,usage"), "sacctmgr level",
                     Output(0, f"{level}\n"))  # fmt: skip


def parameters(key: str, value: str) -> Facts:
    """Return control's facts with another value in place of none."""
    return h.slurm(f"{key}     = (null)", f"{key} = {value}")


def saving(*changes: tuple[str, str]) -> Facts:
    """Return control's facts where Slurm switches off idle nodes."""
    said = h.CONFIG.replace("SuspendProgram          = (null)", "SuspendProgram = /off")
    for old, new in (("SuspendTime             = INFINITE", "SuspendTime = 30 sec"), *changes):
        assert old in said
        said = said.replace(old, new)
    return h.program(h.control(), "scontrol config", Output(0, said))


FAULTS = [
    ("PreemptExemptTime", h.slurm("PreemptExemptTime       = 00:00:00", "PreemptExemptTime = 01:00:00"),
     "PreemptExemptTime=01:00:00 in slurm.conf"),
    ("PreemptExemptTime", h.slurm("NoReserve|", "NoReserve|01:00:00", "sacctmgr qos"), "in QOS gleaner"),
    ("Epilog", h.slurm("PrologEpilogTimeout     = 65534", "PrologEpilogTimeout = 5"), "PrologEpilogTimeout=5"),
    ("Epilog", h.slurm("PrologEpilogTimeout     = 65534", "EpilogTimeout = 20 sec"), "EpilogTimeout=20"),
    ("partition's users", h.slurm("AllowGroups=ALL AllowAccounts=gleaner", "AllowGroups=physics", PARTITIONS),
     "AllowGroups=physics leaves out gleaner"),
    ("partition's users", h.slurm("RootOnly=NO", "RootOnly=YES", PARTITIONS), "RootOnly=YES"),
    ("partition's users", h.slurm("ReqResv=NO", "ReqResv=YES", PARTITIONS), "ReqResv=YES"),
    ("partition's users", h.slurm("MinNodes=0", "MinNodes=2", PARTITIONS), "MinNodes=2"),
    ("partition's users", h.slurm("MaxNodes=UNLIMITED", "MaxNodes=0", PARTITIONS), "MaxNodes=0"),
    ("nodes' memory", h.slurm("State=IDLE", "State=IDLE MemSpecLimit=3900", NODES), "node1 has 100 MiB"),
    ("nodes' memory", h.slurm("MaxMemPerNode=UNLIMITED", "MaxMemPerNode=100", PARTITIONS), "by its MaxMemPerNode,"),
    ("Slurm's programs", h.program(h.control(), "sbatch", Output(0, "*** Maintenance on Tuesday ***\nslurm 24.11.5")),
     "sbatch prints more than its version: *** Maintenance"),
    ("trial submission", h.program(h.control(), TRIAL, Output(0, "", h.TAKEN.replace("gleaner\n", "regular\n"))),
     "into partition regular, not gleaner"),
    ("trial submission", refused("allocation failure: Invalid wckey specification"), "Invalid wckey specification"),
    ("trial submission", refused(NO_NODE), "is not available"),
    ("PrivateData", private("None"), "PrivateData=nodes,usage hides nodes from gleaner"),
    ("PrivateData", replace(h.slurm("PrivateData             = none", "PrivateData = jobs"), settings=ENTITLED),
     "hides jobs from gleaner"),
    ("Slurm's limits", h.slurm("one|root||||||||", "one|root||0||||||", ACCOUNTS), "account root has GrpJobs=0"),
    ("Slurm's limits", h.program(h.slurm("QoS=N/A", "QoS=part", PARTITIONS), "sacctmgr qos limits",
     Output(0, "gleaner||||||||||\npart||||||||||00:01:00\n")), "qos part has MaxWall=00:01:00"),
]  # fmt: skip
WARNINGS = [
    ("PreemptExemptTime", h.slurm("PreemptExemptTime       = 00:00:00", "PreemptExemptTime = 00:00:30"), "00:00:30"),
    ("partition's users", h.slurm("AllocNodes=ALL", "AllocNodes=login1", PARTITIONS), "AllocNodes=login1"),
    ("PrivateData", h.slurm("PrivateData             = none", "PrivateData = jobs"), "hides jobs from gleaner"),
    ("SchedulerParameters", parameters("SchedulerParameters", "defer,bf_interval=900"),
     "bf_interval=900"),
    ("SchedulerParameters", parameters("SchedulerParameters", "bf_max_job_user=1"),
     "bf_max_job_user=1"),
    ("SchedulerParameters", parameters("SchedulerParameters", "bf_max_job_test=20"),
     "bf_max_job_test=20"),
    ("Slurm's request limit", parameters("SlurmctldParameters", "rl_enable,rl_bucket_size=2"),
     "rl_bucket_size=2"),
    ("Slurm's request limit", parameters("SlurmctldParameters", "rl_enable,rl_refill_period=5"),
     "rl_refill_period=5"),
    ("MinJobAge", h.slurm("MinJobAge               = 300 sec", "MinJobAge = 2 sec"), "MinJobAge=2"),
    ("power saving", saving(), "SuspendTime=30 sec"),
    ("power saving", saving(("SuspendExcNodes         = (null)", "SuspendExcNodes = node[1-3]:1")), "SuspendTime=30"),
    ("slurmctld's start", h.slurm("slurmdbd.service munge", "munge", "systemctl slurm"), "does not wait for slurmdbd"),
    ("Slurm's limits", h.slurm("one|root||||||||", "one|root||||||node=1||", ACCOUNTS), "root has GrpTRES=node=1"),
    ("Slurm's limits", h.program(h.control(), "sacctmgr limits", Output(0, "one||gleaner|||2||||\n")), "MaxJobs=2"),
]  # fmt: skip
IN_ORDER = [
    ("Slurm's programs", h.program(h.control(), TRIAL, Unread("sbatch did not answer within 7 s"))),
    ("Epilog", h.slurm("PrologEpilogTimeout     = 65534", "EpilogTimeout = 300\nPrologEpilogTimeout = 5")),
    ("partition's users", h.slurm("AllocNodes=ALL", "AllocNodes=login1,head", PARTITIONS)),
    ("partition's users", h.slurm("AllowAccounts=gleaner", "AllowAccounts=root DenyAccounts=gleaner", PARTITIONS)),
    ("nodes", h.program(h.control(), NODES, Output(0, h.NODES.replace("State=IDLE", "State=IDLE+CLOUD+POWERED_DOWN")))),
    ("nodes", h.program(h.slurm("Nodes=node[1-3]", "Nodes=node[1-40]", PARTITIONS), NODES, Output(0, MANY_NODES))),
    ("SchedulerParameters", parameters("SchedulerParameters", "bf_max_job_user=3")),
    ("slurmctld's start", h.program(h.slurm("AccountingStorageHost   = head", "AccountingStorageHost = other"),
     "systemctl slurm", Output(0, h.SLURM_UNITS.replace("slurmdbd.service munge", "munge")))),
    ("slurmctld's start", h.program(h.slurm("SLURM_VERSION           = 24.11.5", "SLURM_VERSION = 25.05.1"),
     "systemctl slurm", Output(0, h.SLURM_UNITS.replace("slurmdbd.service munge", "munge")))),
    ("Slurm's limits", limited("||||||node=1|")),
    ("PreemptExemptTime", h.program(h.slurm("PreemptExemptTime       = 00:00:00", "PreemptExemptTime = (null)"),
     "sacctmgr qos", Output(0, "gleaner|0.000000|NoReserve|00:00:00\nshort|1.0||01:00:00\n"))),
    ("trial submission", h.program(refused("allocation failure: (job submit limit, user's size)"), "squeue agents",
     Output(0, "RUNNING|gleaner-1800000000-5eed5eed|None\n"))),
    ("PrivateData", private("Operator")),
    ("SchedulerParameters", parameters("SchedulerParameters", "bf_interval=60,bf_continue")),
    ("Slurm's request limit", parameters("SlurmctldParameters", "rl_enable")),
    ("MinJobAge", h.slurm("MinJobAge               = 300 sec", "MinJobAge = 0 sec")),
    ("power saving", saving(("SuspendExcParts         = (null)", "SuspendExcParts = gleaner"))),
    ("power saving", saving(("SuspendExcNodes         = (null)", "SuspendExcNodes = node[1-3]"))),
    ("slurmctld's start", h.slurm("UnitFileState=enabled\nAfter=mariadb", "UnitFileState=disabled\nAfter=mariadb",
     "systemctl slurm")),
    ("Slurm's limits", h.slurm("one|root||||||||", "one|root||||||node=3||", ACCOUNTS)),
    ("Slurm's limits", replace(h.slurm("one|root||||||||", "one|root||||||node=1||", ACCOUNTS),
     settings=h.settings(rounds=RoundSettings(agents_at_most=1)))),
]  # fmt: skip
