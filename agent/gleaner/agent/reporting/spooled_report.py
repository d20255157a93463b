"""A report that waits on the storage for control, with the proof that its agent has written it.

The key of the proof is the hash of the agent's token, which only the agent and control know. So a file is trusted
because of its proof and not because of the folder that contains it.
"""

import hashlib
import hmac
import json
from typing import Annotated

from pydantic import Field

from gleaner.agent.messages import Message

REPORTS, UNREAD = "reports", "unread"
"""The subfolders for reports, and for reports that control cannot read, of an agent's folder on the storage."""


class SpooledReport(Message):
    """One file of an agent's reports."""

    path: str
    body: str
    proof: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def is_proved_by(self, token_hash: str) -> bool:
        """Return True if the agent with this token has written the report."""
        return hmac.compare_digest(self.proof, _proof(self.path, self.body, token_hash))


def prove(path: str, body: str, token_hash: str) -> SpooledReport:
    """Return the report with its proof."""
    return SpooledReport(path=path, body=body, proof=_proof(path, body, token_hash))


def hash_of(token: str) -> str:
    """Return the hash of a token, which control stores instead of the token. One round of SHA-256 suffices for 256
    random bits."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _proof(path: str, body: str, token_hash: str) -> str:
    return hmac.digest(token_hash.encode(), json.dumps([path, body]).encode(), "sha256").hex()
