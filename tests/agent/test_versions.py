"""An agent and a control of different versions refuse each other in one line."""

import json

import httpx
import pytest
from pydantic import ValidationError

from gleaner.agent import messages
from gleaner.agent.messages import VERSION, ClaimRequest, Orders, VersionedMessage
from gleaner.agent.reporting.client import ControlClient, ControlSilent

WHOLE = [
    each
    for each in vars(messages).values()
    if isinstance(each, type) and issubclass(each, VersionedMessage) and each is not VersionedMessage
]


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1, -1, "x", None, 1.5])
def test_a_message_of_another_version_is_refused_in_one_line_and_not_read(
    kind: type[VersionedMessage], version: object
) -> None:
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(json.dumps({"version": version, "quite": "different"}))
    (only,) = refused.value.errors()
    assert only["msg"] == (
        f"this message is of version {version}, and here version {VERSION} is read: install the same Gleaner everywhere"
    )


def test_an_agent_says_in_one_line_that_control_is_of_another_version() -> None:
    answer = Orders().model_dump() | {"version": VERSION + 1}
    client = ControlClient(urls=["http://control"], name="a", token="t", ca_file=None, timeout_s=1)
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=answer))
    client._http = httpx.Client(transport=transport)
    with pytest.raises(ControlSilent, match="install the same Gleaner everywhere") as silent:
        client.claim(ClaimRequest(cpus=1, memory_mib=1))
    assert "\n" not in str(silent.value)
