"""One clear line says what cannot be read: programs that are missing, hang, or print anything; files of any kind."""

import errno
import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.setup import healthy as h
from tests.setup.healthy import script

from gleaner.agent.privileged import program_files
from gleaner.agent.privileged.common import config
from gleaner.control.queue.database import connect, migrate
from gleaner.control.settings import ClientSettings, EntitlementSettings
from gleaner.control.setup import machine_checks, machine_facts, readers, reading, slurm_admin_facts
from gleaner.control.setup.facts import (
    Certificate,
    ControlFacts,
    EpochFacts,
    Folder,
    HeartbeatFacts,
    MachineRole,
    Output,
    StoredFacts,
    TextFile,
    Unread,
)
from gleaner.control.slurm_admin.server import write_heartbeat

PATIENCE_S = 120.0
NOBODY = 65534


def test_a_program_that_is_missing_hangs_or_may_not_be_run_is_one_line(tmp_path: Path) -> None:
    assert reading.run(("no-such-program",), within_s=PATIENCE_S) == Unread(
        "there is no program no-such-program here", is_missing=True
    )
    assert reading.run(("sleep", "1000"), within_s=0.1) == Unread("sleep did not answer within 0.1 s")
    (tmp_path / "text").write_text("")
    (tmp_path / "text").chmod(0o600)
    found = reading.run((str(tmp_path / "text"),), within_s=PATIENCE_S)
    assert isinstance(found, Unread)
    assert found.why.endswith("cannot be run: Permission denied")


def test_what_a_program_prints_may_be_of_any_bytes(tmp_path: Path) -> None:
    path = script(tmp_path, "odd", r"printf 'caf\351 \000\n'; printf '\377' >&2; exit 3")
    assert reading.run((str(path),), within_s=PATIENCE_S) == Output(3, "caf\ufffd \ufffd\n", "\ufffd")


def test_readers_that_hang_or_break_keep_nobody_from_the_others() -> None:
    hangs = threading.Event()

    def breaks() -> str:
        raise ValueError("two\nlines")

    found = reading.side_by_side(
        {"good": lambda: "7", "breaks": breaks, "hangs": lambda: str(hangs.wait())}, within_s=0.3
    )
    hangs.set()
    assert found == {"good": "7", "breaks": Unread("ValueError: two lines"), "hangs": Unread("no answer within 0.3 s")}


@pytest.mark.slow
def test_a_program_knows_its_age_and_a_look_has_one_end_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; from gleaner.control.setup.reading import age_of_this_program_s as age; print(age(), age())"
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
    first, second = map(float, done.stdout.split())
    assert 0 < first <= second <= time.monotonic() - began_s + 0.02  # the kernel counts in hundredths
    ends: list[float] = []
    monkeypatch.setattr(reading, "side_by_side", lambda readers, *, within_s: ends.append(within_s) or {})
    readers.read(MachineRole.NODE, Unread("x"), patience_s=6.0)
    (names_s, all_s) = ends
    assert names_s == 1.0
    assert 4.0 < all_s <= 6.0


def test_the_free_room_of_a_folder_is_in_bytes_and_inodes(tmp_path: Path) -> None:
    found = reading.folder(tmp_path)
    assert isinstance(found, Folder)
    assert found.free_bytes > 0
    assert found.free_files > 0
    assert found.all_bytes >= found.free_bytes
    assert found.all_files == os.statvfs(tmp_path).f_files


def test_a_file_that_is_none_is_one_line_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "odd").write_bytes(b"a\xff\0")
    for name, why in (("none", "there is no"), ("pipe", "is no plain file"), ("", "Is a directory")):
        found = reading.text_file(tmp_path / name)
        assert isinstance(found, Unread)
        assert why in found.why
    odd = reading.text_file(tmp_path / "odd")
    assert not isinstance(odd, Unread)
    assert odd.text == "a\ufffd\ufffd"


@pytest.mark.parametrize("url", ["head", "ftp://head", "https://", "http://[::1", "https://head:99999"])
def test_an_address_that_is_none_is_one_line(url: str) -> None:
    found = reading.ask(url, "/health", None, within_s=PATIENCE_S)
    assert isinstance(found, Unread)
    assert "must be like https://HOST:8642" in found.why


def test_a_token_never_travels_in_the_clear() -> None:
    found = reading.ask("http://head:8642", "/v1/status", None, within_s=PATIENCE_S, token="secret")
    assert isinstance(found, Unread)
    assert "in the clear" in found.why


def test_a_server_that_hangs_is_told_from_one_that_is_away_and_its_address_is_named() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        away = str(reading.ask(f"http://localhost:{port}", "/health", None, within_s=PATIENCE_S))
        assert f"1 here) port {port}: Connection refused" in away
        listening.listen()
        for scheme in ("http", "https"):
            hung = str(reading.ask(f"{scheme}://127.0.0.1:{port}", "/health", None, within_s=0.05))
            assert f"127.0.0.1 port {port} accepts connections: it did not answer within 0.05 s" in hung


def test_a_nodes_folder_for_agents_output_is_the_one_that_control_names(tmp_path: Path) -> None:
    def named(path: str) -> object:
        return machine_facts.output_folder(replace(h.CONTROL, health=h.HEALTH | {"agent_logs": path}), within_s=5)

    assert isinstance(found := named(str(tmp_path)), Folder)
    assert found.path == str(tmp_path)
    assert named(str(tmp_path / "none")) == Unread(f"there is no {tmp_path / 'none'}", is_missing=True)
    assert named("") == Unread("control does not say where the agents' output goes")


@contextmanager
def answering(*bodies: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server that gives these answers in turn, and the questions that it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for body in bodies:
                with listening.accept()[0] as connection:
                    request = b""
                    while b"\r\n\r\n" not in request:
                        request += connection.recv(2**16)
                    asked.append(request)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        server = threading.Thread(target=answer, daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        server.join()


def test_a_large_request_is_longer_than_two_packets() -> None:
    with answering(b"{}") as (url, asked):
        assert machine_facts.large_request(url, None, PATIENCE_S) == ""
    assert len(asked[0]) > 2 * 1500


def test_control_is_asked_again_while_its_database_is_slow() -> None:
    slow, well = (json.dumps({"leader": True, "queue": queue}).encode() for queue in ("not answered for 2 s", "ok"))
    with answering(slow, well) as (url, asked):
        found = machine_facts.control(url, None, PATIENCE_S)
    assert isinstance(found, ControlFacts)
    assert (found.health["queue"], len(asked)) == ("ok", 2)


@pytest.mark.parametrize(
    ("scheme", "answer", "cure"),
    [
        ("http", b"", "begin client.url with https://"),
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "no https is spoken there: is client.url right"),
    ],
)
def test_plain_http_and_https_are_told_from_each_other(scheme: str, answer: bytes, cure: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"

        def answer_one() -> None:
            with listening.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(answer)

        server = threading.Thread(target=answer_one, daemon=True)
        server.start()
        said = reading.ask(url, "/health", None, within_s=PATIENCE_S)
        server.join()
    facts = h.client(settings=h.settings(client=ClientSettings(url=url)), control=said)
    assert cure in machine_checks.control_answers(facts).to_do


def test_a_certificate_is_shown_as_to_a_client_and_its_key_must_fit(tmp_path: Path) -> None:
    certificate, key, other = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3")
    names = ("-subj", "/CN=head", "-addext", "subjectAltName=DNS:head")
    for where in (other, key):
        words = ("openssl", "req", "-x509", *kind, *names, "-keyout", str(where), "-out", str(certificate))
        subprocess.run(words, check=True, capture_output=True, timeout=60)
    found = reading.certificate_file(certificate, key, ca_file=certificate, host="head")
    assert isinstance(found, Certificate)
    assert found.names == ("head",)
    old = tmp_path / "old.pem"
    renew = ("openssl", "x509", "-in", str(certificate), "-signkey", str(key), "-days", "-1", "-out", str(old))
    subprocess.run(renew, check=True, capture_output=True, timeout=60)
    expired = reading.certificate_file(old, key, ca_file=old, host="head")
    assert isinstance(expired, Certificate)  # a check says when it ended
    assert expired.ends_s <= time.time()
    for given, host, ca_file, why in (
        (key, "node1", certificate, "is not for that name: Hostname mismatch"),
        (key, "10.1.2.3", certificate, "is not for that name: IP address mismatch"),
        (other, "head", certificate, "cannot be used together"),
        (key, "head", None, "is not trusted"),
        (tmp_path / "none", "head", certificate, "there is no"),
    ):
        wrong = reading.certificate_file(certificate, given, ca_file=ca_file, host=host)
        assert isinstance(wrong, Unread)
        assert why in wrong.why


def test_a_database_is_only_read(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    url = f"sqlite:///{path}"
    assert machine_facts.schema(url, PATIENCE_S) == Unread(f"there is no database {path}: run `glean control migrate`")
    path.touch()
    assert "no tables yet" in str(machine_facts.schema(url, PATIENCE_S))
    engine = connect(url)
    migrate(engine)
    assert machine_facts.schema(url, PATIENCE_S) == ""  # while it is open
    engine.dispose()
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert machine_facts.schema(url, PATIENCE_S) == ""
    assert machine_facts.stored(path, PATIENCE_S) == StoredFacts(0, ())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    path.write_bytes(b"no database at all" * 100)
    assert "not a database" in str(machine_facts.schema(url, PATIENCE_S))
    assert "not a database" in str(machine_facts.stored(path, PATIENCE_S))


def test_the_epochs_of_the_slurm_admin_service_and_of_the_queue_are_read(tmp_path: Path) -> None:
    database, conf, file = tmp_path / "queue.db", tmp_path / "conf", tmp_path / "alive.epoch"
    engine = connect(f"sqlite:///{database}")
    migrate(engine)
    conf.write_text(f"control us\nsocket /s\nheartbeat {tmp_path}/alive\n")
    assert "no epoch yet" in str(slurm_admin_facts.epochs(conf, database, PATIENCE_S))
    file.write_text("7\n")
    assert slurm_admin_facts.epochs(conf, database, PATIENCE_S) == EpochFacts(str(file), 7, 0)
    with engine.begin() as queue:
        queue.exec_driver_sql("INSERT INTO leader VALUES (1, 'us', 0, 6)")
    assert slurm_admin_facts.epochs(conf, database, PATIENCE_S) == EpochFacts(str(file), 7, 6)
    engine.dispose()
    file.write_text("x")
    assert slurm_admin_facts.epochs(conf, database, PATIENCE_S) == Unread(f"{file} holds no number")
    conf.write_text("nothing known")
    assert "line 1" in str(slurm_admin_facts.epochs(conf, database, PATIENCE_S))


def test_the_heartbeat_of_the_slurm_admin_service_is_read(tmp_path: Path) -> None:
    conf, file = tmp_path / "conf", tmp_path / "alive"
    assert "there is no" in str(slurm_admin_facts.heartbeat(conf))
    conf.write_text(f"control us\nsocket /s\nheartbeat {file}\nfresh-for-s 90\n")
    assert slurm_admin_facts.heartbeat(conf) == HeartbeatFacts(str(file), None, 90.0)
    write_heartbeat(file, time.time() - 50)
    found = slurm_admin_facts.heartbeat(conf)
    assert isinstance(found, HeartbeatFacts)
    assert found.age_s is not None
    assert found.age_s >= 50
    conf.write_text("nothing known")
    assert "line 1" in str(slurm_admin_facts.heartbeat(conf))


def test_the_slurm_admin_services_account_owns_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    asked = EntitlementSettings(slurm_admin_socket=path)
    assert slurm_admin_facts.account_name(asked) == ""
    path.touch()
    assert slurm_admin_facts.account_name(asked) == pwd.getpwuid(os.geteuid()).pw_name


def test_a_server_of_this_machine_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_one() -> None:
            with listening.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

        server = threading.Thread(target=answer_one, daemon=True)
        server.start()
        said = reading.ask(f"http://127.0.0.1:{listening.getsockname()[1]}", "/", None, within_s=PATIENCE_S)
        server.join()
    assert isinstance(said, reading.HttpAnswer)
    assert (said.body, said.is_here) == (b"{}", True)


def test_a_file_that_may_not_be_read_is_named_with_its_owner(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o640)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    assert reading.owner_and_mode(tmp_path / "file") == f" ({owner}'s, mode 640)"
    assert reading.owner_and_mode(tmp_path / "none") == ""


def test_a_file_names_the_folders_to_it_and_to_what_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "file").touch()
    (tmp_path / "links").mkdir(mode=0o711)
    (tmp_path / "links" / "link").symlink_to("../closed/file")
    found = reading.text_file(tmp_path / "links" / "link")
    assert isinstance(found, TextFile)
    modes = {folder.path: folder.mode for folder in found.folders}
    assert (modes[str(tmp_path / "links")], modes[str(tmp_path / "closed")]) == (0o711, 0o700)
    assert found.folders[0].path == "/"


def test_a_file_can_be_read_on_a_file_system_without_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> list[str]:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "listxattr", refuse)
    (tmp_path / "file").touch()
    found = reading.text_file(tmp_path / "file")
    assert isinstance(found, TextFile)
    assert found.folders


def test_a_file_says_when_it_was_changed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", (5, 7))
    found = reading.text_file(tmp_path / "file")
    assert isinstance(found, TextFile)
    assert found.changed_s == 7


def test_root_s_programs_are_compared_with_the_record_and_with_this_version(tmp_path: Path) -> None:
    library, record = tmp_path / "library", tmp_path / "setup.json"
    files = {}
    for file in program_files.files_of_programs(config.Config(1, library=str(library))):
        if file.path.startswith(str(library)):
            place = Path(file.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(file.mode)
            files[file.path] = hashlib.sha256(file.content).hexdigest()
    record.write_text(json.dumps({"files": files}))
    found = machine_facts.installed_programs(record, library)
    assert not isinstance(found, Unread)
    assert (found.changed, found.other_version, found.foreign) == ((), (), ())
    shim = library / "gleaner/agent/privileged/shim/main.py"
    shim.write_text("# somebody was here")
    shim.chmod(0o666)
    other = library / "gleaner/agent/privileged/helper/main.py"
    files[str(other)] = "0" * 64
    record.write_text(json.dumps({"files": files}))
    found = machine_facts.installed_programs(record, library)
    assert not isinstance(found, Unread)
    assert (found.changed, found.other_version, found.foreign) == ((str(other), str(shim)), (str(other),), (str(shim),))
    record.write_text("{")
    assert "is broken" in str(machine_facts.installed_programs(record, library))


def test_a_machine_is_what_its_files_say() -> None:
    for path, role in (
        ("/etc/gleaner/privileged.json", MachineRole.NODE),
        ("/etc/systemd/system/gleaner-control.service", MachineRole.CONTROL),
        ("/etc/gleaner/agent.toml", MachineRole.CLIENT),
    ):
        assert readers.find_role(path.__eq__) is role


def test_the_agents_settings_are_named_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.toml"
    monkeypatch.setenv("GLEANER_AGENT_SETTINGS", str(path))
    missing = machine_facts.read_agent_settings()
    assert isinstance(missing, Unread)
    assert missing.is_missing
    for text, why in (
        ("margin_s = -1", "line 1: margin_s must be at least 0"),
        ("a = [", "not valid TOML"),
        ("margins = 5", "unknown key"),
    ):
        path.write_text(text)
        found = machine_facts.read_agent_settings()
        assert isinstance(found, Unread)
        assert why in found.why, found.why
    path.write_text("margin_s = 7")
    good = machine_facts.read_agent_settings()
    assert not isinstance(good, Unread)
    assert good.margin_s == 7


def test_a_program_at_a_socket_is_asked_and_not_only_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert "No such file" in str(reading.answers(path, within_s=PATIENCE_S))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert "Connection refused" in str(reading.answers(path, within_s=PATIENCE_S))
        listening.listen()
        # A program that somebody has stopped still has connections made to it, by the kernel.
        assert reading.answers(path, within_s=0.05) == Unread(f"{path} did not answer within 0.05 s")

        def close_both() -> None:
            for _ in range(2):
                listening.accept()[0].close()

        server = threading.Thread(target=close_both, daemon=True)
        server.start()
        assert reading.answers(path, within_s=PATIENCE_S) == ""
        server.join()


def test_programs_are_known_by_their_names() -> None:
    mine = Path("/proc/self/comm").read_text().strip()
    assert reading.running_names((mine, "no-such-program")) == (mine,)


def test_debians_slurmd_is_known_by_its_other_name_too(tmp_path: Path) -> None:
    (tmp_path / f"p{os.getpid()}-wlm").symlink_to(shutil.which("cat") or "")
    program = str(tmp_path / f"p{os.getpid()}-wlm")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"  # the kernel gives a program its name after Popen has returned
        assert reading.running_names((f"p{os.getpid()}",)) == (f"p{os.getpid()}",)
        limits = reading.limits_of(f"p{os.getpid()}", uid=os.geteuid())
        assert isinstance(limits, str)
        assert "Max open files" in limits
    assert isinstance(reading.limits_of(f"p{os.getpid()}", uid=os.geteuid()), Unread)


def test_a_running_programs_variable_is_read_where_the_rights_suffice(tmp_path: Path) -> None:
    name = f"e{os.getpid()}"  # looked up among all processes of the machine
    (tmp_path / name).symlink_to(shutil.which("cat") or "")
    program, variables, uid = str(tmp_path / name), {"TMPDIR": "/roomy"}, os.geteuid()
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=variables
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        assert process.stdout.read(1) == b"x"
        assert reading.variable_of(name, "TMPDIR", uid=uid) == "/roomy"
        assert reading.variable_of(name, "XDG_RUNTIME_DIR", uid=uid) == ""
        others = Unread(f"{name} does not run", is_missing=True)
        assert reading.variable_of(name, "TMPDIR", uid=uid + 1) == others  # any user may call a process so
    assert reading.variable_of(name, "TMPDIR", uid=uid) == others


def test_a_program_that_somebody_has_stopped_does_not_run(tmp_path: Path) -> None:
    path = str(script(tmp_path, "watchdog", "echo begun; read -r _; exit 0"))
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert reading.running((path, "/no/other")) == (path,)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert reading.running((path,)) == ()
        process.send_signal(signal.SIGCONT)
        process.stdin.close()


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (sys.executable, Output(0, sys.executable)),
        ("/opt/old/glean-agent", Unread("control starts /opt/old/glean-agent, which is not here", is_missing=True)),
        ("", Unread("control does not say which program it starts")),
    ],
)
def test_a_node_looks_for_the_program_that_control_starts(program: str, found: Output | Unread) -> None:
    control = replace(h.CONTROL, health=h.HEALTH | {"agent_program": program})
    assert machine_facts.find_controls_agent(control, within_s=PATIENCE_S) == found
    silent = machine_facts.find_controls_agent(Unread("no answer"), within_s=PATIENCE_S)
    assert silent == Unread("control does not say which program it starts")
