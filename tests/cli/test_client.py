"""The command line's message when control, the network or the token is not as it should be: one line each."""

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.privileged.waiting import wait_until

from gleaner.client import connection
from gleaner.control.cli import app

STATUS = {
    "campaign": None,
    **dict.fromkeys(("new", "running", "saved", "succeeded", "failed", "cancelled", "held"), 0),
}


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token in a file of mode 0600, and nothing else set."""
    path = tmp_path / "token"
    path.write_text("a-secret\n")
    path.chmod(0o600)
    (tmp_path / "gleaner.toml").write_text("")
    monkeypatch.setenv("GLEANER_SETTINGS", str(tmp_path / "gleaner.toml"))
    monkeypatch.setenv("GLEANER_CLIENT__TOKEN_FILE", str(path))
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `glean` and give the exit code and the one line on stderr; nothing may be on stdout."""

    def run(*arguments: str) -> tuple[int, str]:
        code = app.run(list(arguments))
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("glean: ")
        assert printed.err.count("\n") == 1
        assert "a-secret" not in printed.err
        return code, printed.err.removeprefix("glean: ").rstrip()

    return run


@contextmanager
def server(
    answers: Iterator[tuple[int, str] | None],
    *,
    tls: ssl.SSLContext | None = None,
    port: int = 0,
    keys: list[str] | None = None,
) -> Generator[tuple[str, list[str]]]:
    """A server that is not Gleaner: it gives these answers in turn; None breaks the connection. Requests are noted."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            if keys is not None:
                keys.append(self.headers["Idempotency-Key"])
            answer = next(answers)
            if answer is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            body = answer[1].encode()
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        running.socket = tls.wrap_socket(running.socket, server_side=True)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{running.server_port}", requests
    finally:
        running.shutdown()
        running.server_close()


def repeat(*answers: tuple[int, str] | None) -> Iterator[tuple[int, str] | None]:
    """These answers, the last one for ever."""
    yield from answers
    while True:
        yield answers[-1]


Said = Callable[..., tuple[int, str]]


def test_no_token_file_says_where_one_belongs(token: Path, said: Said) -> None:
    token.unlink()
    assert said("status") == (3, f"no token: {token} is not there; ask an admin for one and put it there, mode 0600")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_token_that_others_can_read_is_refused(mode: int, token: Path, said: Said) -> None:
    token.chmod(mode)
    assert said("status") == (3, f"the token in {token} can be read by others: chmod 600 {token}")


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe", b"one\ntwo"])
def test_a_token_file_that_holds_no_token_is_refused(content: bytes, token: Path, said: Said) -> None:
    token.write_bytes(content)
    assert said("status") == (3, f"no token: {token} does not hold one line of plain text")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://control.example.org:8642", "off this machine the token must not travel in the clear; use https://"),
        ("control:8642", "it must be like https://HOST:8642"),
        ("ftp://localhost", "it must be like https://HOST:8642"),
        ("http://localhost:99999", "it must be like https://HOST:8642"),
        ("http://[", "it must be like https://HOST:8642"),
    ],
)
def test_a_url_that_a_token_must_not_travel_to_is_refused(
    url: str, complaint: str, token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLEANER_CLIENT__URL", url)
    code, line = said("status")
    assert code == 2
    assert line.endswith(complaint)


@pytest.mark.slow
def test_a_control_program_that_does_not_run_is_named_with_its_url(
    token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("GLEANER_CLIENT__URL", url)
    code, line = said("status")
    assert code == 3
    assert line.startswith(f"cannot reach control at {url} (")
    assert line.endswith("is it running, and is client.url right?")


def test_a_control_program_that_does_not_answer_is_not_waited_for_longer_than_set(
    token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        monkeypatch.setenv("GLEANER_CLIENT__TIMEOUT_S", "0.2")
        assert said("status") == (3, f"control at {url} did not answer in time")


def test_a_read_is_asked_again_after_a_lost_answer(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(repeat(None, (503, '{"detail": "starting"}'), (200, json.dumps(STATUS)))) as (url, requests):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert app.run(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert requests == ["GET /v1/status"] * 3


class Restarting:
    """A port of this machine on which nobody listens, until `begin`."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.mark.parametrize("arguments", [("submit", "--image", "a", "--json", "--", "run"), ("status", "--json")])
def test_a_refused_connection_is_tried_again_since_nothing_can_have_arrived(
    arguments: tuple[str, ...], token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    restarting = Restarting()
    monkeypatch.setenv("GLEANER_CLIENT__URL", restarting.url)
    body = {"campaign": None, "jobs": [7], "warning": ""} if arguments[0] == "submit" else STATUS

    def begin() -> None:
        with server(repeat((200, json.dumps(body))), port=restarting.port) as (_, requests):
            ended.wait(30)
            seen.extend(requests)

    ended, seen = threading.Event(), list[str]()
    beginning = threading.Timer(0.4, begin)
    beginning.start()
    assert app.run(list(arguments)) == 0
    ended.set()
    beginning.join()
    assert json.loads(capsys.readouterr().out) == body
    assert len(seen) == 1, "asked once where somebody heard it"


def test_a_refused_connection_is_not_tried_for_longer_than_a_restart_takes(
    token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLEANER_CLIENT__URL", Restarting().url)
    monkeypatch.setenv("GLEANER_CLIENT__TIMEOUT_S", "0.5")
    pauses_s: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (pauses_s.append(seconds), sleep(seconds)))
    code, line = said("submit", "--image", "a", "--", "run")
    assert code == 3
    assert line.startswith("cannot reach control at ")
    assert 0 < sum(pauses_s) <= 0.5, "no longer than the settings say"


def test_a_name_that_nobody_knows_is_not_asked_for_as_if_control_were_restarted(
    token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def unknown(host: str, *_: object, **__: object) -> object:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("GLEANER_CLIENT__URL", "https://contrl:8642")
    code, line = said("hold", "1")
    assert (code, asked) == (3, ["contrl"])
    assert "Name or service not known" in line


def test_slow_name_resolution_is_said_after_a_while_and_not_waited_for_four_times(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    word: list[str] = []

    def slow(host: str, *_: object, **__: object) -> object:
        asked.append(host)
        until_s = time.monotonic() + 0.4  # longer than a connection may take
        wait_until(lambda: word.append(capsys.readouterr().err) or bool("".join(word)), "the word is there")
        time.sleep(max(0.0, until_s - time.monotonic()))
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(connection, "NOTICE_AFTER_S", 0.1)
    monkeypatch.setattr(connection, "CONNECT_S", 0.3)
    monkeypatch.setenv("GLEANER_CLIENT__URL", "https://contrl:8642")
    assert app.run(["status"]) == 3
    first, end = ("".join(word) + capsys.readouterr().err).splitlines()
    assert first == "glean: no answer from https://contrl:8642 for 0.1 s; still trying"
    assert "Temporary failure in name resolution" in end
    assert asked == ["contrl"]


@pytest.mark.slow
def test_who_waits_for_an_answer_is_told_after_five_seconds(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        monkeypatch.setenv("GLEANER_CLIENT__TIMEOUT_S", "6")
        assert app.run(["status"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        f"glean: no answer from {url} for 5 s; still trying",
        f"glean: control at {url} did not answer in time",
    ]


def test_of_writes_only_a_submission_is_repeated_by_itself_and_with_its_key(
    token: Path, said: Said, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: list[str] = []
    with server(repeat(None)) as (url, requests):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert said("hold", "1")[0] == 3
    assert requests == ["POST /v1/jobs/1/hold"]
    with server(iter([None, (201, '{"campaign": null, "jobs": [7]}')]), keys=keys) as (url, requests):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert app.run(["submit", "--image", "a", "--", "run"]) == 0
    assert requests == ["POST /v1/jobs"] * 2
    assert len(keys[0]) == 36
    assert keys == [keys[0]] * 2
    assert "7" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "code", "line"),
    [
        (200, "<html>hello</html>", 1, "gave an answer that this glean does not understand"),
        (200, '{"more": 1}', 1, "gave an answer that this glean does not understand"),
        (404, "<html>", 1, "answered with status 404 and no reason; is it Gleaner?"),
        (302, "", 1, "answered with status 302 and no reason; is it Gleaner?"),
        (
            401,
            '{"detail": "unknown token"}',
            3,
            "control does not know the token in {token}; ask an admin for a new one",
        ),
        (403, '{"detail": "for admins only"}', 3, "not allowed: for admins only"),
        (404, '{"detail": "there is no job 5"}', 1, "there is no job 5"),
        (409, '{"detail": "job 5 is Complete"}', 1, "job 5 is Complete"),
        (502, '{"detail": "the output is broken"}', 1, "the output is broken"),
        (502, "<html>bad backend</html>", 3, "answered with status 502 and no reason"),
        (422, '{"detail": "limit is too high"}', 2, "limit is too high"),
        (500, '{"detail": "a\\nb\\u001b[2J"}', 1, "a b [2J"),
        (503, '{"detail": "the database is locked"}', 3, "control cannot do this now: the database is locked"),
    ],
)
def test_every_answer_but_the_expected_one_is_one_line_and_an_exit_code(
    status: int, body: str, code: int, line: str, token: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(repeat((status, body))) as (url, _):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        exit_code, complaint = said("status")
    assert exit_code == code
    assert line.format(token=token) in complaint


def test_a_proxy_of_the_environment_never_sees_the_token(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(repeat((500, ""))) as (proxy, seen), server(repeat((200, json.dumps(STATUS)))) as (url, _):
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, proxy)
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert app.run(["status"]) == 0
    assert seen == []


@pytest.mark.slow
def test_a_certificate_is_checked_and_the_sites_authority_is_trusted(
    token: Path, said: Said, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with server(repeat((200, json.dumps(STATUS))), tls=tls) as (url, requests):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        code, line = said("status")
        assert code == 3
        assert line.startswith(f"the certificate of {url} is not trusted")
        assert "set client.ca_file to the site's authority" in line
        assert requests == []
        monkeypatch.setenv("GLEANER_CLIENT__CA_FILE", str(certificate))
        assert app.run(["status"]) == 0
        capsys.readouterr()
        monkeypatch.setenv("GLEANER_CLIENT__CA_FILE", str(tmp_path / "none.pem"))
        code, line = said("status")
        assert code == 2
        assert line.startswith(f"client.ca_file {tmp_path / 'none.pem'}: ")
