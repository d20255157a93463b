"""Each check names its fault, and says what to do; machines in order have none; garbage is no reason to give up."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.setup import healthy as h
from tests.setup import slurm_cases
from tests.setup.fault_cases import (
    AUDITED,
    CHANGED,
    CLOSED,
    DEMO,
    DENIED,
    ELSEWHERE,
    ENTITLED,
    FAST,
    FAULTS,
    LOGS,
    MISSING,
    NO_BEAT,
    NO_DOCKER,
    NO_HELPER,
    ON,
    OTHER_NAME,
    PLAIN,
    SAYS,
    SETTINGS,
    SILENT,
    UNREADABLE,
    WARNINGS,
    WITHOUT_DOCKER,
    in_folder,
    noted,
    state_of,
    storage,
    switched,
    timed,
    unit,
)

from gleaner.agent.privileged.common.config import Config
from gleaner.control.settings import (
    ApiSettings,
    ClientSettings,
    ClusterSettings,
    QueueSettings,
    RoundSettings,
)
from gleaner.control.setup import readers
from gleaner.control.setup.doctor import CHECKS, findings
from gleaner.control.setup.facts import (
    Account,
    Certificate,
    Facts,
    FolderOnTheWay,
    MachineRole,
    Output,
    StoredFacts,
    TextFile,
    Unread,
)
from gleaner.control.setup.finding import CheckState


@pytest.mark.parametrize("facts", [h.control(), h.node(), h.client()], ids=lambda facts: facts.role)
def test_a_machine_in_order_has_neither_fault_nor_warning(facts: Facts) -> None:
    not_ok = [finding for finding in findings(facts) if finding.state in {CheckState.FAULT, CheckState.WARNING}]
    assert not_ok == []


@pytest.mark.parametrize(("name", "facts"), FAULTS, ids=[f"{n}-{name}" for n, (name, _) in enumerate(FAULTS)])
def test_a_fault_is_named_by_its_check(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.FAULT


@pytest.mark.parametrize(("name", "facts"), WARNINGS, ids=[f"{n}-{name}" for n, (name, _) in enumerate(WARNINGS)])
def test_what_somebody_should_look_at_is_a_warning(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.WARNING


def test_what_only_the_account_may_write_is_no_fault_of_an_ordinary_users_look() -> None:
    refused = replace(h.QUEUE, refused="/var/lib/gleaner", uid=h.UID, mode=0o755)
    denied = storage(trouble="cannot make a folder: Permission denied")
    for uid, state in ((1000, CheckState.NOT_CHECKED), (h.UID, CheckState.FAULT), (0, CheckState.FAULT)):
        assert state_of("queue's writes", h.control(uid=uid, queue=refused)) is state
        assert state_of("storage's writes", h.control(uid=uid, storage=denied)) is state


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("storage", h.control(storage=DENIED)),
        ("storage", h.node(storage=DENIED)),
        ("work folder", h.node(folders={"/var/lib/gleaner/work": DENIED})),
        ("database's disk", h.control(folders={"/var/lib/gleaner": DENIED})),
    ],
)
def test_a_folder_that_only_the_account_may_look_into_is_no_fault_of_an_ordinary_users_look(
    name: str, facts: Facts
) -> None:
    states = [state_of(name, replace(facts, uid=uid)) for uid in (1000, h.UID, 0)]
    assert states == [CheckState.NOT_CHECKED, CheckState.FAULT, CheckState.FAULT]


def test_there_is_a_case_for_each_check_and_a_name_stands_once() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    of_slurm = {name for name, *_ in [*slurm_cases.FAULTS, *slurm_cases.WARNINGS]}
    assert set(names) - of_slurm - {name for name, _ in [*FAULTS, *WARNINGS]} == set()
    for role in (MachineRole.CONTROL, MachineRole.NODE):
        assert sum(role in check.roles for check in CHECKS) >= 25


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("Docker", h.node(programs={**h.node().programs, **WITHOUT_DOCKER})),
        ("node helper", h.node(helper=NO_HELPER, privileged=Config(h.UID))),
        ("CRIU's check", h.node(uid=4200)),
        ("CRIU's check", h.program(h.node(), "criu --version", Output(-11, ""))),
        ("Docker's group", h.node(uid=1000, docker_socket=Unread("this can be tried by root"))),
        ("services", h.control(has_systemd=False)),
        ("SelectType", h.control(settings=h.settings(cluster=ClusterSettings(backend="local")))),
        ("storage is shared", h.health(h.node(), storage_id="")),
        ("agents' times", h.health(h.node(), round_length_s=None)),
        ("agent's start", h.program(h.node(), readers.AGENT_START, SILENT)),
        ("slurmd's limits", h.node(slurmd_limits="Max cpu time")),
        ("containers' folder", h.node(helper=NO_HELPER, docker_folder=MISSING)),
        ("agents' times", h.health(h.node(), least_slice_s="x")),
        ("looks at Slurm", h.health(h.control(), leader=False)),
        ("munge", h.client(munge=Unread("the program munge is not installed here", is_missing=True))),
        ("token", h.file(h.client(), "/token", MISSING)),
        ("Slurm admin service", h.control(slurm_admin=MISSING)),
        ("certificate", h.control(certificate=OTHER_NAME, control=OTHER_NAME)),
        ("settings in force", h.health(CHANGED, started_s=None)),
        ("Slurm admin's heartbeat", h.control(heartbeat=replace(h.HEARTBEAT, age_s=None))),
        ("Slurm admin's heartbeat", h.health(replace(ON, heartbeat=NO_BEAT), started_s=h.NOW_S - 60)),
        ("Slurm admin's heartbeat", h.health(replace(ON, heartbeat=NO_BEAT), started_s=None)),
        ("Slurm admin's heartbeat", h.health(replace(ON, heartbeat=NO_BEAT), leader=False)),
        ("settings in force", replace(CHANGED, control=replace(h.CONTROL, is_here=False))),
        ("settings in force", replace(CHANGED, overrides=frozenset({"GLEANER_SETTINGS"}))),
        ("audit file", replace(LOGS, audit=Unread("this can be tried by root, or by the service account"))),
        ("Slurm admin's rights", h.control(slurm_admin=MISSING)),
        ("Slurm admin's rights", h.program(h.control(uid=1000), "sacctmgr admin", Output(0, ""))),
        ("Slurm admin's epoch", h.control(slurm_admin=MISSING)),
        ("Slurm admin's epoch", h.health(h.control(epochs=replace(h.EPOCHS, heard=2**31)), leader=False)),
        ("dead man's switch", h.control(slurm_admin=MISSING)),
        ("agents' groups", h.control(account=NO_DOCKER, commands=())),
        ("agents' groups", h.control(account=NO_DOCKER, stored=DENIED)),
        ("queue's writes", h.control(queue=DENIED)),
        ("Slurm's limits", h.program(h.control(), "sacctmgr limits", Output(1, "", "Unknown field"))),
        ("queue's writes", h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g@/g")))),
        ("database's disk", h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g@/g")))),
        ("certificate's key", h.file(h.control(uid=1000), "/etc/key.pem", DENIED)),
        ("key for secrets", h.control(uid=1000, secret_key=replace(h.SECRET_KEY, trouble="Permission denied"))),
        ("database", h.control(schema=Unread("no answer within 6 s"))),
        ("control", h.node(agent=Unread("x"), control=Facts.__dataclass_fields__["control"].default)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_known_here_is_no_fault(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.NOT_CHECKED


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("service account", h.node(account=Account("gleaner", 4201, ())), "must be 4200, as privileged.json says"),
        ("service account", h.node(account=Account("gleaner", 4201, ())), "usermod -u 4200 gleaner"),
        ("CRIU", h.program(h.node(), "criu --version", Output(-11, "")), "criu crashes (SIGSEGV)"),
        ("CRIU", h.program(h.node(), "criu --version", Output(139, "")), "criu crashes (SIGSEGV)"),
        ("CRIU", h.program(h.node(), "criu --version", Output(0, "")), "the file is damaged"),
        ("node helper", h.node(helper=Unread("setpriv did not answer within 5 s")), "systemctl restart gleaner-helper"),
        ("storage", h.node(storage=storage(is_set_up=False, uid=0)), "no storage is mounted at /srv/gleaner"),
        ("storage's writes", h.node(storage=storage(trouble="cannot make a folder: Read-only file system")),
         "mount -o remount,rw /srv/gleaner"),
        ("Slurm's JSON", h.program(h.node(), "scontrol json", Unread("scontrol did not answer within 5 s")),
         "5 s does slurmctld answer?"),
        ("settings", h.file(h.control(), SETTINGS, TextFile("", mode=0o600)),
         f"gleaner cannot read {SETTINGS} (root's, mode 600) chmod 644 {SETTINGS}"),
        ("settings", replace(UNREADABLE, uid=h.UID), f"chmod 644 {SETTINGS}"),
        ("agents' settings", h.node(agent=Unread("/etc/gleaner/agent.toml: Permission denied")),
         "chmod 644 /etc/gleaner/agent.toml"),
        ("agents' times", h.health(h.node(), round_length_s=90.0, least_slice_s=45.0),
         "need 340 s (KillWait 30, margin_s 10, shortest_slice_s 300), and control's rounds last 90 s lower these in"),
        ("storage's owner", h.node(storage=storage(foreign="agents")),
         "/srv/gleaner/agents is root's, not uid 4200's chown -R --reference=/srv/gleaner /srv/gleaner/agents"),
        ("control", h.control(control=Unread("the certificate of head is not trusted: self-signed certificate")),
         "still serves an older certificate than its file's systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("the certificate of head is not trusted: self-signed certificate")),
         "ca_file is not the authority of control's certificate: copy it from control's machine again"),
        ("control", h.node(control=Unread("the certificate of head is not trusted: certificate has expired")),
         "on its machine: run `glean setup control` again, then systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("the certificate of site is not for that name: Hostname mismatch, for x")),
         "use a name that the certificate has, or make it anew: glean setup control --host NAME"),
        ("control", h.node(control=Unread("head port 8642 accepts connections: it did not answer within 5 s")),
         "control hangs: on its machine systemctl restart gleaner-control"),
        ("control", h.client(settings=PLAIN, control=Unread("head port 8642: Remote end closed connection")),
         "control speaks https, and this was http: begin client.url with https://"),
        ("control", h.client(settings=PLAIN, control=Unread("head port 8642: Connection reset by peer"),
                             overrides=frozenset({"GLEANER_CLIENT__URL"})),
         "begin GLEANER_CLIENT__URL in the environment with https://"),
        ("control", h.control(settings=h.settings(api=ApiSettings()), control=Unread("Connection refused")),
         "control listens at 127.0.0.1 alone: mend [api] host, then systemctl restart gleaner-control"),
        ("control", h.node(control=Unread("head port 8642: [SSL] record layer failure (_ssl.c:1000)")),
         "no https is spoken there: is control_url in agent.toml right"),
        ("service account", h.node(storage=storage(uid=65534)),
         "the storage is nobody's here (65534): the file system does not map its owners on NFS: is gleaner known"),
        ("Docker", h.program(h.node(agent=h.agent(runtime="docker")), "docker version",
                             Unread("docker did not answer within 6 s")),
         "systemctl restart containerd docker"),
        ("certificate", h.control(certificate=Certificate(("head",), h.NOW_S - h.DAY_S)),
         "expired on 2027-01-14 run `glean setup control` again"),
        ("token", h.control(token=Output(401, "send a known token, as `Authorization: Bearer TOKEN`; an admin")),
         "does not know the token in /token: was it revoked, or is it of another control? ask an admin"),
        ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, tried=3, unopened=3)),
         "is not the one that the 3 secrets of groups were stored with"),
        ("key for secrets", h.control(secret_key=replace(h.SECRET_KEY, tried=3, unopened=2)), "2 of the 3 secrets"),
        ("token", h.file(h.client(user="alice"), "/token", Unread(
            "/token cannot be read: Permission denied (root's, mode 600)")),
         "no token: /token cannot be read: Permission denied (root's, mode 600) as root: chown alice /token"),
        ("token", h.file(h.client(), "/token", TextFile("Bearer t0", mode=0o600)), "/token begins with 'Bearer ' put"),
        ("token", h.client(token=Output(403, "a token of role metrics reads /metrics and nothing else")),
         "control refuses the token in /token: a token of role metrics reads /metrics and nothing else ask an admin"),
        ("certificate's key", CLOSED, "/etc/tls (root's, mode 700): control cannot start again chmod o+x /etc/tls"),
        ("control", replace(ELSEWHERE, control=Unread("head port 8642: Connection refused")),
         f"(GLEANER_CLIENT__URL in the environment counts; {SETTINGS} names https://other:8642)"),
        ("certificate", h.control(certificate=Unread("/etc/cert.pem is not for that name: Hostname mismatch")),
         "use a name that the certificate has"),
        ("munge", h.control(munge=Unread('munge refuses gleaner: Failed to access "/run/munge/m": Permission denied')),
         "munge refuses gleaner: Failed to access \"/run/munge/m\": Permission denied all accounts must reach"),
        ("agents", h.control(problem=SAYS), "`runuser -u gleaner -- munge -n | unmunge`; is munge's key slurmctld's"),
        ("agents", h.control(problem="Slurm does not answer: sinfo says 'Unable to contact slurm controller'"),
         "does slurmctld run, and is its port not blocked by a firewall? scontrol ping"),
        ("agents", h.control(problem="Slurm does not answer: squeue took more than 30 s"), "scontrol ping, sdiag"),
        ("agents", h.control(problem="Slurm refuses: sbatch says 'Invalid account'"), "journalctl -u gleaner-control"),
        ("Slurm admin service", ENTITLED, "hangs systemctl restart gleaner-slurm-admin"),
        ("Docker's group", h.node(docker_socket="root:root, mode 660"), "(root:root, mode 660)"),
        (
            "services",
            h.program(h.control(), "systemctl", unit("inactive", "", "not-found")),
            "run glean setup control, then systemctl enable --now gleaner-control",
        ),
    ],
)  # fmt: skip
def test_a_line_names_the_cause_and_its_cure(name: str, facts: Facts, words: str) -> None:
    (found,) = (finding for finding in findings(facts) if finding.name == name)
    assert found.state is CheckState.FAULT
    assert words in f"{found.seen} {found.to_do}"


def test_an_agent_program_that_knows_no_version_can_be_started() -> None:
    said = Output(2, "", "Usage: glean-agent run\nNo such option: --version\n")
    assert state_of("agent's start", h.program(h.node(), readers.AGENT_START, said)) is CheckState.OK


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        (Output(0, "KillWait                = 300 sec\n"), CheckState.WARNING),
        (Output(1, "", "Unable to contact slurm controller"), CheckState.OK),  # the agents take Slurm's default, too
        (Unread("scontrol did not answer within 5 s"), CheckState.OK),
        (MISSING, CheckState.OK),
    ],
)
def test_an_agents_time_for_a_job_ends_before_slurms_last_signals(said: Output | Unread, judged: CheckState) -> None:
    facts = h.program(h.node(), "scontrol config", said)
    assert state_of("agents' times", facts) is judged
    set_s = replace(facts, agent=h.agent(kill_wait_s=0.0))
    assert state_of("agents' times", set_s) is CheckState.OK
    demo = h.health(replace(facts, agent=h.agent(kill_wait_s=4.0, margin_s=5.0, shortest_slice_s=10.0)),
                    round_length_s=90.0, least_slice_s=25.0)  # fmt: skip
    assert state_of("agents' times", demo) is CheckState.OK


def test_settings_that_cannot_be_read_are_one_fault() -> None:
    assert [finding.name for finding in findings(UNREADABLE) if finding.state is CheckState.FAULT] == ["settings"]


@pytest.mark.parametrize(
    "facts",
    [
        h.control(account=NO_DOCKER, stored=StoredFacts(0, ("criu",))),
        replace(h.slurm("Epilog[0]", "LaunchParameters = disable_send_gids\nEpilog[0]"), account=NO_DOCKER),
    ],
)
def test_agents_need_no_group_docker_of_slurmctlds_machine(facts: Facts) -> None:
    assert state_of("agents' groups", facts) is CheckState.OK


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("times in settings", DEMO),
        ("Slurm admin's heartbeat", ON),
        ("Slurm admin's heartbeat", replace(ON, heartbeat=replace(h.HEARTBEAT, age_s=200.0, fresh_for_s=300.0))),
        *(("times in settings", timed(rounds=RoundSettings(length_s=length_s))) for length_s in (120, 600, 86_400)),
        ("times in settings", timed(cluster=ClusterSettings(timeout_s=1))),  # there is no Slurm
        ("settings in force", h.file(CHANGED, SETTINGS, TextFile("", changed_s=h.NOW_S - h.DAY_S + 0.9))),
        ("audit file", LOGS),
        ("audit file", replace(h.control(settings=AUDITED), has_systemd=False)),
        ("audit file", h.program(LOGS, "systemctl places", Output(0, "ProtectSystem=no\n"))),
        ("audit file", h.program(LOGS, "systemctl places", Output(0, "ProtectSystem=strict\nReadWritePaths=-/var"))),
        ("Slurm admin's rights", h.control(slurm_admin_account="root")),
        ("Slurm admin's rights", replace(h.slurm("SLURM_VERSION", "SlurmUser = slurm(64030)\nSLURM_VERSION"),
                                         slurm_admin_account="slurm")),
        ("dead man's switch", switched(replace(ON, up_s=200.0), ended_s=0)),  # the machine was just started
        ("dead man's switch", switched(state="activating", ended_s=0)),
        ("dead man's switch", replace(ON, has_systemd=False)),
        ("dead man's switch", h.file(ON, readers.DEADMAN, TextFile("", mode=0o750))),  # of its account's group
    ],
)  # fmt: skip
def test_what_is_in_order_is_no_false_alarm(name: str, facts: Facts) -> None:
    assert state_of(name, facts) is CheckState.OK


def test_an_address_of_the_environment_is_named_if_the_file_has_another() -> None:
    def seen(facts: Facts) -> str:
        return next(finding.seen for finding in findings(facts) if finding.name == "control")

    assert seen(ELSEWHERE).endswith("names https://other:8642)")
    for text in ('[client]\nurl = "https://head:8642"\n', "", "[client", "client = 5"):
        assert seen(h.file(ELSEWHERE, SETTINGS, TextFile(text))) == "https://head:8642 answers and leads"
    assert seen(replace(ELSEWHERE, overrides=frozenset())) == "https://head:8642 answers and leads"


def test_a_busy_slurm_is_no_false_alarm() -> None:
    for facts in (h.health(FAST, last_poll_age_s=68.0), h.health(replace(FAST, problem=SAYS), last_poll_age_s=8.0)):
        assert state_of("looks at Slurm", facts) is CheckState.OK


def test_a_refusal_without_a_reason_is_not_controls() -> None:
    assert state_of("token", h.client(token=Output(403, ""))) is CheckState.NOT_CHECKED


def test_a_token_that_is_not_used_is_not_judged() -> None:
    facts = h.client(settings=h.settings(client=ClientSettings(url="https://head:8642", proof="munge")))
    assert state_of("token", replace(facts, token=Output(401, "the token has expired"))) is CheckState.NOT_CHECKED


@pytest.mark.parametrize(
    ("name", "facts", "advice"),
    [
        ("certificate's key", in_folder(FolderOnTheWay("/t", 0, h.UID, 0)), "chmod g+x /t"),
        ("agents' settings", h.node(agent=Unread("x, which agents need, is not installed here")), "gleaner-node again"),
        ("control", h.node(control=Unread("head (10.0.0.9 here) port 8642: No route to host")), "/etc/hosts, DNS"),
        ("agents", h.control(problem="agents end: have the nodes a (agent_command)?"), "glean doctor node"),
    ],
)  # fmt: skip
def test_the_advice_is_about_the_cause(name: str, facts: Facts, advice: str) -> None:
    (found,) = (finding for finding in findings(facts) if finding.name == name)
    assert found.state is CheckState.FAULT
    assert advice in found.to_do


def test_settings_of_the_accounts_group_can_be_read() -> None:
    facts = h.file(h.control(), SETTINGS, TextFile("", mode=0o640, gid=h.UID))
    assert state_of("settings", facts) is CheckState.OK


@pytest.mark.parametrize(("uid", "gid", "mode"), [(0, 0, 0o711), (0, h.UID, 0o710), (h.UID, 0, 0o700)])
def test_a_certificate_in_a_folder_that_the_account_may_enter_can_be_read(uid: int, gid: int, mode: int) -> None:
    assert state_of("certificate's key", in_folder(FolderOnTheWay("/etc/tls", uid, gid, mode))) is CheckState.OK


@pytest.mark.parametrize(
    "facts",
    [
        h.node(storage=storage(inode=8, changed_s=1.7e9 + 1)),  # a file system that makes up inodes, and rounds times
        h.node(storage=storage(changed_s=1.7e9 + 60)),  # an attribute that this machine still remembers
        h.health(h.node(storage=storage(inode=8, changed_s=1.0)), storage_inode=0, storage_changed_s=0.0),
        h.health(h.node(storage=storage(inode=8, changed_s=1.0)), storage_inode=None, storage_changed_s=None),
    ],
)
def test_only_another_file_with_another_time_is_a_copy(facts: Facts) -> None:
    assert state_of("storage is shared", facts) is CheckState.OK


@pytest.mark.parametrize(
    "facts",
    [
        h.node(storage=storage(key_notes={})),
        h.node(user_jobs_key=Unread("only root can read it")),
        h.node(storage=Unread("it hangs")),
        h.node(storage=noted(node3=("0dd", h.NOW_S - 3 * h.DAY_S))),  # older than this node's key
        h.node(storage=noted(node3=("0dd", h.NOW_S - 8 * h.DAY_S)), user_jobs_key=replace(h.NODES_KEY, changed_s=0.0)),
        h.node(storage=noted(node1=("0dd", h.NOW_S - 5))),  # this node's own: an agent notes the new key at its start
        h.node(storage=noted(node3=("", h.NOW_S - 5))),  # a power cut has emptied it
    ],
)
def test_only_a_note_that_is_newer_than_the_key_shows_another_key(facts: Facts) -> None:
    assert state_of("user jobs' key", facts) is CheckState.OK


def test_the_key_of_most_nodes_is_the_right_one() -> None:
    notes = {f"node{number}": ("f1a9", h.NOW_S - 60) for number in range(2, 500)}
    with_wrong = h.node(storage=storage(key_notes=notes | {"node9": ("0dd", h.NOW_S - 60)}))
    (here,) = (finding for finding in findings(with_wrong) if finding.name == "user jobs' key")
    assert (here.state, here.seen.split(":")[0]) == (CheckState.WARNING, "node9")
    wrong_here = replace(with_wrong, user_jobs_key=replace(h.NODES_KEY, fingerprint="0dd"))
    (here,) = (finding for finding in findings(wrong_here) if finding.name == "user jobs' key")
    assert here.state is CheckState.FAULT
    assert here.to_do.startswith("copy the other nodes' key to ")
    one_each = h.node(storage=storage(key_notes={"node2": ("0dd", h.NOW_S - 60), "node3": ("f1a9", h.NOW_S - 60)}))
    (here,) = (finding for finding in findings(one_each) if finding.name == "user jobs' key")
    assert here.to_do == "find out which /etc/gleaner/user-jobs.key is right, and copy it to the others"


def test_a_storage_that_is_not_mounted_is_one_fault() -> None:
    facts = h.node(storage=storage(is_set_up=False, uid=0, mode=0o755, id=""))
    assert [finding.name for finding in findings(facts) if finding.state is CheckState.FAULT] == ["storage"]


def test_agents_use_the_helper_where_docker_cannot_save() -> None:
    facts = h.program(h.node(), "docker version", Output(0, '{"Version": "28.5.2", "Experimental": true}'))
    assert state_of("runtime", facts) is CheckState.OK


def test_the_older_control_groups_will_do() -> None:
    lines = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" + "".join(
        f"{name}\t1\t1\t1\n" for name in ("cpu", "memory", "pids", "freezer")
    )
    facts = h.file(h.file(h.node(), readers.CGROUPS_V2, MISSING), readers.CGROUPS_V1, TextFile(lines))
    assert state_of("control groups", facts) is CheckState.OK


def test_plain_http_on_control_itself_needs_no_certificate() -> None:
    facts = h.control(
        settings=h.settings(api=ApiSettings(), client=ClientSettings(token_file=Path("/token"))),
        certificate=Unread("control has no certificate: only this machine can reach it", is_missing=True),
    )
    assert state_of("certificate", facts) is CheckState.OK
    assert state_of("certificate's key", facts) is CheckState.OK


def test_the_time_that_the_answer_took_is_no_wrong_clock() -> None:
    facts = h.node(control=replace(h.CONTROL, ahead_s=1.4, unsure_s=0.6))
    assert state_of("clock against control", facts) is CheckState.OK


def test_a_password_that_all_may_read_is_a_warning() -> None:
    facts = h.control(settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g:hunter2@db/g")))
    assert state_of("settings", facts) is CheckState.WARNING


lines = st.lists(
    st.sampled_from(
        [
            "=",
            " = ",
            "PriorityTier=x",
            "Nodes=[",
            "KillWait = ",
            "{",
            "}",
            "[]",
            "|",
            "||||",
            "Version:",
            "99999999999.1",
        ]
    )
    | st.text(max_size=12),
    max_size=8,
).map(" ".join)


@given(text=lines, status=st.sampled_from([0, 1, -9]), which=st.sampled_from(["control", "node", "client"]))
def test_programs_and_files_may_say_anything(text: str, status: int, which: str) -> None:
    """A text that is not understood is one line of one finding; a check of ours never breaks on it."""
    facts = {"control": h.control, "node": h.node, "client": h.client}[which]()
    facts = replace(
        facts,
        programs={name: Output(status, text, text) for name in facts.programs},
        files={path: TextFile(text) for path in facts.files},
        kernel=text,
    )
    for finding in findings(facts):
        assert "this check itself failed" not in finding.seen
        assert finding.seen.splitlines() == [finding.seen]
        assert finding.to_do.splitlines() in ([finding.to_do], [])


@given(which=st.sampled_from(["control", "node", "client"]), name=st.text(max_size=20))
def test_nothing_may_have_been_read(which: str, name: str) -> None:
    facts = {"control": h.control, "node": h.node, "client": h.client}[which]()
    away = Unread(f"no answer {name!r}")
    facts = replace(
        facts, settings=away, agent=away, privileged=away, storage=away, control=away, token=away, certificate=away,
        account=away, schema=away, installed=away, helper=away, munge=away, commands=away,
        programs=dict.fromkeys(facts.programs, away), files=dict.fromkeys(facts.files, away),
        folders=dict.fromkeys(facts.folders, away),
    )  # fmt: skip
    assert not [finding for finding in findings(facts) if "this check itself failed" in finding.seen]
