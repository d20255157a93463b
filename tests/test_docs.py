"""The pages say what the program does: links, tables and names in them are compared with the code."""

import re
from pathlib import Path

import pytest

from gleaner.agent.settings import AgentSettings
from gleaner.control.life import Move
from gleaner.control.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "deploy" / "INSTALL.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")


def _rows(page: Path, header: str) -> list[list[str]]:
    """The cells of the table with that header line."""
    lines = page.read_text().splitlines()
    rows: list[list[str]] = []
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    local = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_life_in_the_design_page_is_the_one_in_the_code() -> None:
    drawn: dict[str, tuple[set[str], set[str]]] = {}
    for names, sources, targets in _rows(ROOT / "docs" / "design.md", "| move | from | to |"):
        for name in re.sub(r"\(.*\)", "", names).split(","):
            ends = set(re.findall(r"New|Running|Saved|Complete", targets))
            drawn[name.strip().replace(" ", "_").upper()] = (set(sources.split(", ")), ends)
    coded: dict[str, tuple[set[str], set[str]]] = {}
    for move in Move:
        sources, targets = coded.setdefault(move.name.removesuffix("_TO_SAVED").removesuffix("_TO_NEW"), (set(), set()))
        sources |= {source.value for source in move.sources}
        targets.add(move.target.value)
    assert drawn == coded


def test_the_tests_that_guard_against_findings_are_there() -> None:
    """A name without a file is of the file that was named before it."""
    rows = _rows(ROOT / "docs" / "design.md", "| finding | what mends it | tests |")
    assert len(rows) > 40
    missing: list[str] = []
    for finding, _, tests in rows:
        path = ""
        for named, name in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?`", tests):
            path = named or path
            files = (ROOT / "tests" / path, ROOT / "agent" / "gleaner" / path)
            text = next((file.read_text() for file in files if file.is_file()), None)
            if text is None or (name and f"def {name}(" not in text):
                missing.append(f"{finding}: {path}::{name}")
    assert missing == []


def test_the_defaults_in_the_admins_page_are_those_of_the_program() -> None:
    control = dict(Settings.model_construct())
    fields = AgentSettings.model_fields
    rows = _rows(ROOT / "docs" / "admin.md", "| setting | default | what it does | when to change it |")
    assert len(rows) > 5
    for name, default, *_ in rows:
        key = re.sub(r"[`\s]|agent:", "", name)
        if name.startswith("agent:"):
            found = fields[key].default
        else:
            table, _dot, field = key.partition(".")
            found = getattr(control[table], field)
        assert str(found).lower() == default, key
