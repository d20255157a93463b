"""Parts of uploads, as a client sends them."""

from typing import Any

from httpx import Response
from tests.api.api_harness import ApiHarness, Caller


def put_part(
    caller: Caller, kind: str, content: str, part: bytes, size_bytes: int, at: int = 0, **more: Any
) -> Response:
    answer: Response = caller.client.put(
        f"/v1/uploads/{kind}/{content}",
        params={"size_bytes": size_bytes, "at": at, **more},
        content=part,
        headers=caller.headers | {"Content-Type": "application/octet-stream"},
    )
    return answer


def uploads_left(harness: ApiHarness) -> list[str]:
    return sorted(path.name for path in (harness.state.settings.storage.folder / ".uploads").glob("*/*/*"))
