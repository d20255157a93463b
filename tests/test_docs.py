"""The pages say what the program does: links, tables and names in them are compared with the code."""

import ast
import inspect
import itertools
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests import doc_pages
from tests.runtime.kinds.table import KINDS

from gleaner.agent.job import lifecycle
from gleaner.agent.runtime import criu_reasons
from gleaner.agent.settings import SiteAgentSettings
from gleaner.control.policy import why_waiting
from gleaner.control.settings import Settings

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?:\]\(|src=\")([^)#\s\"]*)(?:#([^)\s]*))?[)\"]")


def _rows(page: Path, header: str) -> list[list[str]]:
    """Return the cells of all tables with that header line. Raises `ValueError` where the page has none."""
    lines = page.read_text().splitlines()
    rows: list[list[str]] = []
    for begin in [number for number, line in enumerate(lines) if line == header]:
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines[begin + 2 :]):
            rows.append([cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")])
    if not rows:
        raise ValueError(f"{page.name} has no table with the header {header!r}")
    return rows


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.NAMES)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    missing: list[str] = []
    for file, anchor in LINK.findall(page.read_text()):
        target = page.parent / file if file else page
        if "://" not in file and (not target.exists() or (anchor and anchor not in _anchors(target))):
            missing.append(f"{file}#{anchor}")
    assert missing == []


EACH_PAGE = list(zip(doc_pages.NAMES, doc_pages.PAGES, strict=True))
MOST_LINES, MOST_WORDS, LONGEST_LINE = 250, 40, 100


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of paragraphs and lists: what stands between backticks is one word, a table is none.

    >>> list(_sentences("# Title\\n\\nOne `a. B` two.\\nThree [four](five.md):\\n\\n    code\\n\\n- Six.\\n- Seven\\n"))
    ['One CODE two.', 'Three [four]:', 'Six.', 'Seven']
    """
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _without_code(text)):
        lines = [line for line in block.splitlines() if not re.match(r"[|#!]", line)]
        if not lines or re.match(r" {4}", lines[0]):
            continue
        words = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", " ".join(line.strip() for line in lines))
        words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", words))
        if " · " not in words:  # a list of links
            yield from (part for part in re.split(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z0-9*\[\"(])", words) if part)


@pytest.mark.parametrize(("name", "page"), EACH_PAGE, ids=doc_pages.NAMES)
def test_a_page_is_short_wrapped_and_begins_with_its_contents(name: str, page: Path) -> None:
    """Tables, code and headings have lines as long as they need."""
    text = page.read_text()
    prose = [line for line in _without_code(text).splitlines() if not re.match(r"[|#!]| {4}", line)]
    assert [line for line in prose if len(line) > LONGEST_LINE and " " in line.strip()] == []
    assert len(text.splitlines()) <= MOST_LINES
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table for table in tables if not re.match(r"\|.*\n\|[-:|]+\n\|", table)] == [], "no head, or a blank line"
    opening, _, rest = _without_code(text).partition("\n## ")
    if name != "README.md" and rest.count("\n## ") >= 2:
        missing = re.findall(r"^## (.*)$", f"\n## {rest}", re.MULTILINE)
        listed = set(re.findall(r"\]\(#([^)]*)\)", opening))
        assert [heading for heading in missing if _anchor(heading) not in listed] == [], "not in the table of contents"


@pytest.mark.parametrize(("name", "page"), EACH_PAGE, ids=doc_pages.NAMES)
def test_sentences_of_a_page_are_short(name: str, page: Path) -> None:
    long = [sentence for sentence in _sentences(page.read_text()) if len(sentence.split()) > MOST_WORDS]
    assert long == []


ODD = re.compile(
    "|".join(
        (
            r"(?<=[a-z)\]]): (?=[a-z])",  # a colon as the only joint
            r";",
            r"\bgo(?:es)? on\b",
            r"\b(?:nobody|somebody|none of)\b",
            r", too[.,]",
            r"\b(?:anew|in vain|for ever)\b",
            r"\bof (?:its|their|your) own\b",
            r"\bof (?:root|Slurm)'s\b",
            r"(?:^|(?<=[.!?] ))(?:That is|For that)\b",
            r"\bsays?\b",
        )
    ),
    re.MULTILINE,
)
"""Patterns that make English hard to read, as they look in prose without code."""
MOST_ODD_IN_1000_WORDS, MOST_WORDS_IN_DOCS = 1.0, 40_000


def _odd(text: str) -> list[str]:
    prose = re.sub(r"`[^`]*`", "CODE", re.sub(r"^ {4}.*$", "", _without_code(text), flags=re.MULTILINE))
    return ODD.findall(re.sub(r"\]\([^)]*\)", "]", prose))


def test_the_pages_in_docs_are_short_altogether_and_their_english_is_plain() -> None:
    """A word has a letter or a digit, so the lines of a table are none."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"}
    words = sum(len(re.findall(r"\S*\w\S*", text)) for text in pages.values())
    odd = {name: len(found) for name, text in pages.items() if (found := _odd(text))}
    assert words <= MOST_WORDS_IN_DOCS
    assert sum(odd.values()) * 1000 <= MOST_ODD_IN_1000_WORDS * words, odd


@pytest.mark.parametrize(("name", "page"), EACH_PAGE, ids=doc_pages.NAMES)
def test_each_block_of_commands_names_the_files_that_run_them_or_is_site_specific(name: str, page: Path) -> None:
    """A named file has each verb of `glean`, unless it types what pages show. Indented blocks have no commands."""
    text = page.read_text()
    for language, named, code in re.findall(r"^ *```(\w*)(.*)\n((?:.*\n)*?) *```$", text, re.MULTILINE):
        texts = "".join((ROOT / word).read_text() for word in named.split() if word != "site-specific")
        verbs = () if "doc_pages" in texts else re.findall(r"^(?:\$ )?glean ([a-z]+)", code, re.MULTILINE)
        is_typed = language in {"sh", "bash", "console"} or re.search(r"^ *\$ ", code, re.MULTILINE)
        if is_typed and "site-specific" not in named:
            missing = [verb for verb in verbs if not re.search(rf"\b{verb}\b", texts)]
            assert (texts != "", missing) == (True, []), f"{name}: {named} does not run\n{code}"
    assert not re.search(r"^ {4}(?:glean|apt|docker|sacctmgr|scontrol|systemctl) ", _without_code(text), re.MULTILINE)


def test_the_version_is_the_same_wherever_it_stands() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name, line in (
        ("README.md", "Version {} "),
        ("CHANGELOG.md", "\n## {}\n"),
        ("CITATION.cff", "\nversion: {}\n"),
    ):
        assert line.format(version) in (ROOT / name).read_text(), name


def test_the_pictures_are_those_that_the_program_draws() -> None:
    for name, draw in runpy.run_path(str(ROOT / "docs" / "figures.py"))["PICTURES"].items():
        assert (ROOT / "docs" / name).read_text() == draw(), f"docs/{name} is old: run `make diagrams`"


def test_what_criu_cannot_save_is_what_the_agents_say() -> None:
    names = {"path": "FILE", "size": "N", "what": "X"}
    said = [[kind.reason.format(**names), kind.advice] for kind in criu_reasons.KINDS]
    assert _rows(ROOT / "docs" / "user" / "saving.md", "| it ... | what to do |") == said


def test_each_kind_of_program_that_does_not_simply_continue_is_in_the_docs_with_what_is_promised() -> None:
    promised = [[kind.what, kind.promise] for kind in KINDS if kind.promise != "continues"]
    assert _rows(ROOT / "docs" / "user" / "kinds.md", "| a job that has ... | |") == promised
    assert len(KINDS) - len(promised) >= 50


def _cases_of(function: Callable[..., object]) -> dict[int, str]:
    """Return the first line of each case of the function's `match`, and what the case says, but for the last one."""
    lines, first = inspect.getsourcelines(function)
    (match,) = (node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Match))
    return {case.body[0].lineno + first - 1: ast.unparse(case.pattern) for case in match.cases[:-1]}


def test_the_answers_of_the_troubleshooting_page_are_those_of_glean_why() -> None:
    source = inspect.getsource(why_waiting)
    rows = _rows(ROOT / "docs" / "user" / "troubleshooting.md", "| `glean why` answers | what to do |")
    answers = [answer for row in rows for answer in re.findall(r"`([^`]+)`", row[0])]
    assert len(answers) > 10
    parts = [part.strip() for answer in answers for part in answer.split("...")]
    assert [part for part in parts if part not in source] == []


def test_the_diagrams_are_those_of_the_code_and_lack_no_step_of_the_lifecycle() -> None:
    """Each case of the step function is passed through while its steps are drawn."""
    diagrams = runpy.run_path(str(ROOT / "docs" / "diagrams.py"))
    cases, passed = _cases_of(lifecycle.step), set[int]()

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if frame.f_code is not lifecycle.step.__code__:
            return None
        if event == "line":
            passed.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        diagrams["lifecycle_steps"]()
    finally:
        sys.settrace(before)
    assert {what for line, what in cases.items() if line not in passed} == set(), "docs/diagrams.py draws no such step"
    assert diagrams["PAGE"].read_text() == diagrams["page"](), (
        "docs/contributing/diagrams.md is old: run `make diagrams`"
    )


def test_the_tests_that_guard_against_findings_are_there() -> None:
    """A name without a file is of the file that was named before it."""
    rows = _rows(ROOT / "docs" / "contributing" / "findings.md", "| finding | tests |")
    assert len(rows) > 40
    missing: list[str] = []
    for finding, tests in rows:
        path = ""
        for named, name in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?`", tests):
            path = named or path
            files = (ROOT / "tests" / path, ROOT / "agent" / "gleaner" / path)
            text = next((file.read_text() for file in files if file.is_file()), None)
            if text is None or (name and f"def {name}(" not in text):
                missing.append(f"{finding}: {path}::{name}")
    assert missing == []


def test_the_tree_of_the_design_page_is_the_one_on_disk() -> None:
    """A line of the tree has names, more deeply indented in their folder, and after two blanks what they are for."""
    page = (ROOT / "docs" / "design.md").read_text()
    lines = re.findall(r"^((?: {4})+)(\S.*)$", page.partition("\n## The life of a job")[0], re.MULTILINE)
    parents: list[Path] = []
    missing: list[str] = []
    for indent, line in lines:
        depth = len(indent) // 4 - 1
        if depth > len(parents):
            continue  # what a folder is for goes on here
        names = list(itertools.takewhile(re.compile(r"[\w/]+(?:/|\.py)$").match, re.split(r"\s{2,}", line)))
        places = [(parents[depth - 1] if depth else ROOT) / name for name in names]
        missing += [str(place) for place in places if not place.exists()]
        parents[depth:] = places[:1]
    assert len(parents) > 0
    assert len(lines) > 30
    assert missing == []


def test_what_the_page_of_words_names_is_in_the_code() -> None:
    missing: list[str] = []
    places = [row[2] for row in _rows(ROOT / "docs" / "words.md", "| word | what it means | in code |")]
    assert len(places) > 50
    for place in places:
        for path, name in re.findall(r"`((?:agent|control|deploy)/[\w./]*)`(?: \(`(\w+)`\))?", place):
            package = path.partition("/")[0]
            file = ROOT / path if package == "deploy" else ROOT / package / "gleaner" / path
            if not file.exists() or (name and not re.search(rf"^(class|def) {name}\b", file.read_text(), re.MULTILINE)):
                missing.append(f"{path} {name}".strip())
    assert missing == []


def test_the_page_of_settings_is_that_of_the_program_and_describes_each() -> None:
    drawing = runpy.run_path(str(ROOT / "docs" / "settings.py"))
    assert drawing["undescribed"]() == []
    assert drawing["PAGE"].read_text() == drawing["page"](), "docs/admin/settings.md is old: run `make diagrams`"


def test_the_settings_that_matter_first_exist() -> None:
    control = dict(Settings.model_construct())
    rows = _rows(ROOT / "docs" / "admin" / "settings.md", "| setting | on day one | later |")
    assert len(rows) == 5
    for name, *_ in rows:
        key = re.sub(r"[`\s]|agent:", "", name)
        table, _dot, row = key.partition(".")
        assert key in SiteAgentSettings.model_fields if name.startswith("agent:") else hasattr(control[table], row), key
