"""The `inputs` of a campaign file: the local files and folders that jobs read, and URLs.

A local file is on the submitter's machine, so only `glean submit` can send it and put an `InputSpec` in its place. URLs
are fetched by the agents.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gleaner.agent.common import allowed_urls
from gleaner.agent.job_spec import InputName, UrlInputSpec

KEYS = frozenset({"from", "to", "copy", "url", "sha256"})


@dataclass(frozen=True, slots=True)
class LocalInput:
    """A file or folder on this machine that becomes an input."""

    source: str
    """Its path, relative to the campaign file's folder."""
    name: str
    """Its name in `/inputs`."""
    into_job: bool
    where: str
    """The place where it was written."""


def parsed(keys: dict[str, str], where: str) -> LocalInput | UrlInputSpec:
    """Return the input that these keys describe. Raises a `ValueError` that explains the mistake.

    >>> parsed({"from": "https://data.example.org/pub/events.lhe"}, "here").name
    'events.lhe'
    """
    source, url = keys.get("from", ""), keys.get("url", "")
    if source and url:
        raise ValueError("from names a file of this machine, and url one of elsewhere: give one of them")
    if "://" in source and keys.keys() <= {"from"}:  # written as a single word
        source, url = "", source
    if not source and not url:
        raise ValueError("from is missing; it names the file or folder (or url, for one of elsewhere)")
    if "://" in source:
        raise ValueError(f"{allowed_urls.shown(source)} is a URL: write url instead of from")
    copy = keys.get("copy", "false")
    if copy not in {"true", "false"}:
        raise ValueError(f"copy must be true or false, found {copy!r}")
    last = ""
    if url:
        last = (allowed_urls.location(url).folders or ("",))[-1]
    elif "sha256" in keys:
        raise ValueError("sha256 is for a url: a file of this machine is sent as it is")
    name = keys.get("to") or last or Path(source).name
    try:
        TypeAdapter[str](InputName).validate_python(name)
    except ValidationError:
        raise ValueError(
            f"{name!r} is no name for a file in /inputs: letters and digits, with . _ - within; say one with `to`"
        ) from None
    if not url:
        return LocalInput(source, name, copy == "true", where)
    return UrlInputSpec(name=name, url=url, sha256=_digest(keys.get("sha256")), into_job=copy == "true")


def _digest(written: str | None) -> str | None:
    if written is None:
        return None
    digits = written.lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ValueError(f"sha256 must have 64 hexadecimal digits, as sha256sum prints them, found {written[:70]!r}")
    return f"sha256:{digits}"
