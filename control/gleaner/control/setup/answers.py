"""The answers that setup needs, with a model for each role, and the file that carries some of them to other
machines."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

CA_FILE = "/etc/gleaner/tls/ca.pem"
JOIN_FILE = "/etc/gleaner/join.json"


class SetupRefused(Exception):
    """The reason why setup cannot continue, and the remedy, in one line."""


FilePath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._@+-]+)+$", description="an absolute path")]
AccountName = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="the name of an account")]
AccountNumber = Annotated[int, Field(gt=0, description="a number above 0")]  # root is excluded
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$")]
Url = Annotated[
    str, Field(pattern=r"^https?://[A-Za-z0-9.-]+:[0-9]{1,5}$", description="an address like https://HOST:8642")
]
Authority = Annotated[str, Field(pattern=r"^$|-----BEGIN CERTIFICATE-----", description="a certificate in PEM")]


class ClientAnswers(BaseModel, frozen=True):
    """A login node: control's address, and its authority (PEM), which is empty if the system trusts the certificate."""

    url: Url
    ca: Authority = ""


class SiteAnswers(BaseModel, frozen=True):
    """The storage and the service account, which are the same on all machines."""

    storage: FilePath = "/srv/gleaner"
    account: AccountName = "gleaner"
    uid: AccountNumber = 4200
    gid: AccountNumber = 4200


class JoinFile(ClientAnswers, SiteAnswers, frozen=True):
    """The facts that control's machine passes to the others. They contain no secret."""


class NodeAnswers(JoinFile, frozen=True):
    """A compute node. With `helper`, containers need no Docker. With `docker`, the node's Docker Engine runs them."""

    runtime: Literal["helper", "docker"] = "helper"
    images: tuple[str, ...] = ("gleaner/*",)

    @property
    def agents_url(self) -> str:
        """Return the address of the agents' port, which is one higher than that of `url`."""
        address, port = self.url.rsplit(":", 1)
        return f"{address}:{int(port) + 1}"


class ControlAnswers(SiteAnswers, frozen=True):
    """The machine of the control program."""

    hosts: Annotated[tuple[Host, ...], Field(min_length=1, description="a name or an address of this machine")]
    """The names and addresses by which other machines reach control. Its address contains the first one, and its
    certificate contains all of them."""
    port: Annotated[int, Field(ge=1, le=65535, description="a number of at most 65535")] = 8642
    certificate: FilePath | None = None
    """The site's own certificate, with `key` and `ca`. Without it, setup creates an authority."""
    key: FilePath | None = None
    ca: Authority = ""

    @property
    def url(self) -> str:
        """Return control's address."""
        return f"https://{self.hosts[0]}:{self.port}"


Model = TypeVar("Model", bound=BaseModel)


def read_answers(model: type[Model], *layers: Mapping[str, object]) -> Model:
    """Return the combined answers of these layers. Raises `SetupRefused`.

    A later layer overrides an earlier one, and None counts as no answer.
    """
    given = {key: value for layer in layers for key, value in layer.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        option = {"hosts": "host", "images": "image", "ca": "ca-file"}.get(key, key)
        if first["type"] == "missing":
            raise SetupRefused(f"--{option} is missing, and no earlier run or join file has it") from error
        kind = model.model_fields[key].description or "something else"
        raise SetupRefused(f"--{option} must be {kind}, found {first['input']!r:.80}") from error


def read_join(name: str, text: str) -> JoinFile:
    """Return the content of a join file. Raises `SetupRefused`."""
    try:
        return JoinFile.model_validate_json(text)
    except ValidationError as error:
        raise SetupRefused(f"{name} is no join file: copy {JOIN_FILE} from control's machine") from error
