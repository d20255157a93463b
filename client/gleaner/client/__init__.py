"""Gleaner for Python programs. `Client` and `AsyncClient` offer the verbs of `glean` as methods (docs/python.md).

Importing this package loads httpx and pydantic, but not the server.
"""

from gleaner.agent.job_spec import InputSpec, JobSpec, UrlInputSpec
from gleaner.client.client import AsyncClient, Client
from gleaner.client.errors import ClientError, ErrorKind
from gleaner.control.states import Outcome, State

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ErrorKind",
    "InputSpec",
    "JobSpec",
    "Outcome",
    "State",
    "UrlInputSpec",
]
