"""The words of docs/words.md hold: one thing has one word, and what changes something begins with a verb."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("agent", "control", "lab", "demo", "deploy", "docs", "images", "tests")
KINDS = {".py", ".md", ".toml", ".lua", ".sh", ".service", ".timer", ".js", ".html", ".conf", ".yaml", ".json", ".mako"}
NAME_OLD_WORDS = {"CHANGELOG.md", "tests/test_words.py"}
"""These files name what was called how before."""


RETIRED = {
    "generation": ("generations?", "checkpoint"),
    "parcel": ("parcels?", "archive"),
    "steward": ("stewards?", "Slurm admin service"),
    "keeper": ("keepers?", "leader"),
    "governing": ("govern(s|ed|ing|or)?", "entitlements"),
    "ruling": ("rulings?|ruled(?! out)", "decision"),
    "given back": ("(give|gives|given|giving|gave) back", "returned"),
    "give way": ("(give|gives|giving|gave) way", "vacate, preempt"),
    "send home": ("(send|sends|sent|sending) home", "vacate, preempt"),
    "transfers": ("movers?|movables?", "rebalancer"),
    "own job": ("own jobs?", "user job"),
    "own way": ("own way", "gone: the shim alone saves with Docker"),
    "arrow": ("arrows?", "transition"),
    "tally": ("tally|tallies", "usage cache"),
    "pruner": ("pruners?", "retention"),
    "meeting": ("meetings?", "handshake"),
    "laboratory": ("laboratory|laboratories", "world, harness"),
}
"""A retired word: what it looks like in lower case with one blank between words, and what is said instead."""

EXCUSED = (
    "GenerationConfig",  # schemathesis
    "generation=",
    "Future Generation Computer Systems",  # a journal
    "left to right",
    "Lawrence Berkeley National Laboratory",
    "own jobs of a user",
)
"""Names that others gave, and file names on a site's machines."""


VERBS = """
add append ask cancel charge claim close complete conclude count end ensure expect expire forget give hold issue
judge keep learn limit lose make move open pause publish put record recover register release remove renew reopen
rerun reserve resign revive revoke rotate set submit take trim try use vacate wake withdraw
"""
"""With these begins the name of a function that changes the queue. A noun or a participle is no verb."""


def _files() -> Iterator[tuple[str, Path]]:
    """Yield each file with its path, relative to the root."""
    found = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    for tree in TREES:
        found += [file for file in (ROOT / tree).rglob("*") if file.suffix in KINDS and file.is_file()]
    for file in sorted(found):
        yield file.relative_to(ROOT).as_posix(), file


def _words(text: str) -> str:
    """Return the text in lower case, with one blank between words, those within names too.

    >>> _words("TransitionRefused: given_back  is GIVEN-BACK")
    'transition refused given back is given back'
    """
    text = re.sub(r"\s+", " ", text)
    for name in EXCUSED:
        text = text.replace(name, " ")
    text = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", text)
    return re.sub(r"[\W_]+", " ", text).lower().strip()


def test_retired_words_do_not_come_back() -> None:
    wrong: list[str] = []
    any_of_them = re.compile("|".join(looks for looks, _instead in RETIRED.values()))
    for path, file in _files():
        words = f"{_words(path)} | {_words(file.read_text())}"
        if path in NAME_OLD_WORDS or not any_of_them.search(words):
            continue
        for looks, instead in RETIRED.values():
            for hit in re.finditer(rf"\b(?:{looks})\b", words):
                wrong.append(f"{path}: ...{words[max(0, hit.start() - 30) : hit.end() + 30]}...: say {instead}")
    assert not wrong, "\n".join(wrong)


def test_no_docstring_opens_with_a_bare_question_word() -> None:
    opens = re.compile(r'^ *"""(?:What|Whether|How|Where|When)\b.*', re.MULTILINE)
    python = [(path, file) for path, file in _files() if file.suffix == ".py"]
    wrong = [f"{path}: {line.strip()}" for path, file in python for line in opens.findall(file.read_text())]
    assert not wrong, "begin with an imperative, 'Return', or a noun:\n" + "\n".join(wrong)


def _writes_a_table(function: ast.FunctionDef) -> bool:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Name) and call.id in {"insert", "update", "delete"} for call in calls)


def test_what_changes_the_queue_begins_with_a_verb() -> None:
    changing = [
        f"{file.stem}.{node.name}"
        for file in sorted((ROOT / "control/gleaner/control/queue").glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _writes_a_table(node)
    ]
    assert len(changing) > 30, "the search for what changes the queue finds too little"
    names = {name: name.partition(".")[2] for name in changing}
    assert [name for name, function in names.items() if function.partition("_")[0] not in VERBS.split()] == []
