"""Secrets: credentials that a group stores, so that agents can read protected URLs.

The value is sent only to control. Control never returns it to a user.
"""

import json
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, SecretStr, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.common.allowed_urls import LONGEST_URL
from gleaner.agent.job_spec import Name, Shape
from gleaner.agent.transfer import credentials
from gleaner.agent.transfer.credentials import CredentialKind
from gleaner.control.models.base import Reply

MOST_SECRETS = 100
"""The largest number of secrets that one group can have."""


def _for_urls(url: str) -> str:
    if why := credentials.url_fault(url):
        raise PydanticCustomError("secret_url", "{why}", {"why": why})
    return url


SecretUrl = Annotated[
    str, StringConstraints(pattern=r"^(s3|https|roots)://[!-~]+$", max_length=LONGEST_URL), AfterValidator(_for_urls)
]
"""The beginning of the URLs to which a secret applies."""


class SecretPut(Shape):
    """A secret to store. It replaces an older secret with the same name."""

    model_config = ConfigDict(hide_input_in_errors=True)

    name: Name
    url: SecretUrl
    value: SecretStr
    """For `s3`: ACCESS_KEY:SECRET_KEY; for `https`: a bearer token, or USER:PASSWORD; for `roots`: a bearer token."""
    group: Name | None = None
    """The group. Only an admin can name a group other than the token's own."""

    @model_validator(mode="after")
    def _has_the_form(self) -> Self:
        try:
            credentials.kind(self.url, self.value.get_secret_value())
        except ValueError as error:
            raise PydanticCustomError("secret_form", "{why}", {"why": str(error)}) from None
        return self

    @property
    def kind(self) -> CredentialKind:
        """Return the form of the value."""
        return credentials.kind(self.url, self.value.get_secret_value())

    def with_value(self) -> str:
        """Return the JSON with the value, as it is sent to control. In all other JSON, stars replace the value."""
        return json.dumps(self.model_dump(mode="json") | {"value": self.value.get_secret_value()})


class SecretRow(Reply):
    """A secret without its value."""

    name: str
    group: str
    url: str
    """The beginning of the URLs to which it applies."""
    kind: CredentialKind
    set_s: float
    """The time at which it was set."""
    setter: str
    """The user who set it."""
