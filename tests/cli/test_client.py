"""The command line's message when control, the network or the token is not as it should be: one line each."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest
from tests.certificates import self_signed
from tests.cli.cli_harness import Reply, answering, become_user, free_port

from gleaner.client import connection
from gleaner.client.unpack import Fetched
from gleaner.control.cli import app, render
from gleaner.control.cli.output import Answer

STATUS = {
    "campaign": None,
    **dict.fromkeys(("new", "running", "saved", "succeeded", "failed", "cancelled", "held"), 0),
}


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token in a file of mode 0600, and nothing else set."""
    return become_user(monkeypatch, tmp_path, "http://localhost")


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

    def answer(request: str, headers: Message) -> Reply:
        requests.append(request)
        if keys is not None:
            keys.append(headers["Idempotency-Key"])
        found = next(answers)
        return found and (found[0], found[1].encode())

    with answering(answer, tls=tls, port=port) as url:
        yield url, requests


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
    assert said("status") == (3, f"no token: {token} does not contain one line of plain text")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://control.example.org:8642", "the token must not leave this machine unencrypted; use https://"),
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
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("GLEANER_CLIENT__URL", url)
    code, line = said("status")
    assert code == 3
    assert line.startswith(f"cannot reach control at {url} (")
    assert line.endswith("is it running, and is client.url right?")


def test_a_read_is_asked_again_after_a_lost_answer(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(repeat(None, (503, '{"detail": "starting"}'), (200, json.dumps(STATUS)))) as (url, requests):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert app.run(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert requests == ["GET /v1/status"] * 3


@pytest.mark.parametrize("arguments", [("submit", "--image", "a", "--json", "--", "run"), ("status", "--json")])
def test_a_refused_connection_is_tried_again_since_nothing_can_have_arrived(
    arguments: tuple[str, ...], token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("GLEANER_CLIENT__URL", f"http://127.0.0.1:{port}")
    body = {"campaign": None, "jobs": [7], "warning": ""} if arguments[0] == "submit" else STATUS

    def begin() -> None:
        with server(repeat((200, json.dumps(body))), port=port) as (_, requests):
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


def test_who_waits_for_an_answer_is_told_and_not_for_longer_than_set(
    token: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        monkeypatch.setenv("GLEANER_CLIENT__TIMEOUT_S", "0.4")
        monkeypatch.setattr(connection, "NOTICE_AFTER_S", 0.1)
        assert app.run(["status"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        f"glean: no answer from {url} for 0.1 s; still trying",
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
        (404, "<html>", 1, "answered with status 404 and no reason; is it Gleaner?"),
        (401, '{"detail": "unknown token"}', 3, "control does not know the token in {token}; ask an admin for a"),
        (403, '{"detail": "for admins only"}', 3, "not allowed: for admins only"),
        (404, '{"detail": "there is no job 5"}', 1, "there is no job 5"),
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
    certificate, key = self_signed(tmp_path)
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


@pytest.mark.parametrize(
    "words",
    [
        "show {}", "why {}", "explain {}", "logs {}", "hold {}", "cancel {}", "priority 7 {}", "list --group {}",
        "migrate 7 --to {}", "nodes --forget {}", "drain {}", "resume {}", "image remove {}", "image push {} pi:1",
        "token create user {}", "submit --image {}", "submit --image a/b -- {}", "submit {}", "results 7 --to {}",
        "simulate run {}", "simulate replay {}", "simulate tune {}", "{}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("odd", ["caf\udce9", "n" * 20_000, "9" * 5000, "²"], ids=["bytes", "long", "huge", "²"])
def test_an_argument_that_nobody_expects_is_one_line(
    words: str, odd: str, token: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with server(repeat((404, '{"detail": "no"}'))) as (url, _):
        monkeypatch.setenv("GLEANER_CLIENT__URL", url)
        assert said(*(word.format(odd) for word in words.split()))[0] != 0


def test_a_name_that_is_no_utf8_is_escaped_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    render.show(Answer(Fetched(job=7, folder="caf\udce9", files=0, size_bytes=0, skipped=()), as_json=True))
    assert json.loads(capsys.readouterr().out)["folder"] == "caf\udce9"
