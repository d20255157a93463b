"""The pages for people, and the jobs that they show as examples."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gleaner.agent.common.placeholders import filled
from gleaner.agent.job_spec import UrlInputSpec
from gleaner.control.campaigns import campaign_file
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.models.parameters import ParameterSpace

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "deploy").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
IMAGES = frozenset(file.parent.name for file in (ROOT / "images").glob("*/Dockerfile"))
"""The images that pages use: the demo calls them gleaner/NAME:demo."""
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def name_of(image: str) -> str:
    """Return the name of an image in `IMAGES`, without the demo's prefix and without its tag."""
    return image.removeprefix("gleaner/").partition(":")[0]


@dataclass(frozen=True, slots=True)
class Example:
    """A job that a page shows, with the command of one of its indices."""

    page: str
    image: str
    command: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...] = ()
    """The name of each file of the user's in `/inputs`, and the name by which the page calls it."""


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of code in this language that are not indented."""
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str, program: str) -> Iterator[str]:
    """Yield what a page says is typed: in blocks of code and between backticks, lines that go on put together."""
    text = re.sub(r"\\\n\s*", " ", text)
    yield from re.findall(rf"^ *(?:\$ )?(?:exec )?({program} .*)$", text, re.MULTILINE)
    yield from (re.sub(r"\s+", " ", inline) for inline in re.findall(rf"`({program} [^`]+)`", text))


def _option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def _of_each_index(
    page: str,
    image: str,
    command: Sequence[object],
    indices: Sequence[object],
    inputs: Sequence[LocalInput | UrlInputSpec] = (),
) -> Iterator[Example]:
    files = tuple((one.name, Path(one.source).name) for one in inputs if isinstance(one, LocalInput))
    for index in indices or (None,):
        yield Example(page, image, tuple(str(word).replace("{index}", str(index)) for word in command), files)


def shown_file(page: str, name: str) -> str | None:
    """Return the content of a file that a page shows in the block of code after its name; None if it shows none."""
    text = (ROOT / page).read_text()
    found = re.search(rf"`{re.escape(name)}`[^`]*?:\n\n```\w+[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return None if found is None else found[1]


def _of_a_page(page: str, text: str) -> Iterator[Example]:
    for block in blocks(text, "yaml"):
        keys: dict[str, Any] = {name: given.value for name, given in campaign_file.parse(block, page).items()}
        if isinstance(keys.get("parameters"), dict):
            first = next(ParameterSpace(**keys["parameters"]).each())
            keys["command"] = tuple(filled(word, {**first, "index": "1"}) for word in keys["command"])
        if "image" in keys:
            given = (keys.get(name, ()) for name in ("command", "indices", "inputs"))
            yield from _of_each_index(page, keys["image"], *given)
    for command in commands(text, "docker run"):
        words = shlex.split(command)
        for place, word in enumerate(words):
            if word in IMAGES:
                yield Example(page, word, tuple(words[place + 1 :]))
    for command in commands(text, "glean (?:submit|run)"):
        words = shlex.split(re.split(r" (?:>|\||&&)(?: |$)", command)[0], comments=True)
        if "--" in words:
            before, after = words[: words.index("--")], words[words.index("--") + 1 :]
            indices = campaign_file.indices(_option(before, "--array") or "0")
            yield from _of_each_index(page, _option(before, "--image") or before[-1], after, indices)


def examples() -> list[Example]:
    """Return every job that a page shows with its image and its command."""
    return [example for name, page in zip(NAMES, PAGES, strict=True) for example in _of_a_page(name, page.read_text())]
