"""The words of docs/words.md hold: one thing has one word, and what changes something begins with a verb."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("agent", "control", "lab", "demo", "deploy", "docs", "images", "tests")
KINDS = {".py", ".md", ".toml", ".lua", ".sh", ".service", ".timer", ".js", ".html", ".conf", ".yaml", ".json", ".mako"}
NAME_OLD_WORDS = {"docs/words.md", "CHANGELOG.md", "tests/test_words.py"}
"""These pages say what was called how before."""


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


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

RETIRED_MODULES = _listed(
    """
    arrows beginning bench book carrier choice collector counted ends fitting flags fleet folder governing
    holdings inherited inside keeper kept kinds layer left_reports life lines links losses margin meeting
    migrating transfers movables moves moving names not_on own_way parcel parting periods places placing programs
    pruner reads reports rights rooms rounds runner savable service shell site slurm_words steward stored streamed
    queue/submissions slurm/command_line tally task times vacating written
    """
)
RETIRED_HARNESSES = _listed(
    """
    scene house desk stage office yard lab
    """
)
"""Of tests: these are called `..._harness`."""

VERBS = _listed(
    """
    add append ask cancel charge claim close complete conclude count end ensure expect expire forget give hold issue
    judge keep learn limit lose make move open pause publish put record recover register release remove renew reopen
    rerun reserve resign revive revoke rotate set submit take trim try use vacate wake withdraw
    """
)
"""With these begins the name of a function that changes the queue. A noun or a participle is no verb."""


def _files() -> Iterator[tuple[str, str, Path]]:
    """Yield each file's folder and path, relative to the root and without the packages' folder `gleaner`."""
    found = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    for tree in TREES:
        found += [file for file in (ROOT / tree).rglob("*") if file.suffix in KINDS and file.is_file()]
    for file in sorted(found):
        path = file.relative_to(ROOT)
        yield re.sub(r"^(agent|control)/gleaner/\1", r"\1", path.parent.as_posix()), path.as_posix(), file


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


@functools.cache
def _retired_words() -> dict[str, dict[str, list[str]]]:
    """Return for each retired word the folders where it stands, and lines that show it."""
    patterns = {word: re.compile(rf"\b(?:{looks})\b") for word, (looks, _instead) in RETIRED.items()}
    any_of_them = re.compile("|".join(pattern.pattern for pattern in patterns.values()))
    found: dict[str, dict[str, list[str]]] = {word: {} for word in RETIRED}
    for folder, path, file in _files():
        words = f"{_words(path)} | {_words(file.read_text())}"
        if path in NAME_OLD_WORDS or not any_of_them.search(words):
            continue
        for word, pattern in patterns.items():
            for hit in pattern.finditer(words):
                around = words[max(0, hit.start() - 30) : hit.end() + 30]
                found[word].setdefault(folder, []).append(f"{path}: ...{around}...")
    return found


@functools.cache
def _retired_modules() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for folder, path, file in _files():
        retired = RETIRED_MODULES | (RETIRED_HARNESSES if folder.startswith("tests") else frozenset())
        if file.suffix == ".py" and not retired.isdisjoint({file.stem, f"{file.parent.name}/{file.stem}"}):
            found[path] = [f"{path}: a module that was renamed was called so"]
    return found


@functools.cache
def _bare_docstrings() -> dict[str, list[str]]:
    opens = re.compile(r'^ *"""(?:What|Whether|How|Where|When)\b.*', re.MULTILINE)
    found: dict[str, list[str]] = {}
    for folder, path, file in _files():
        if file.suffix == ".py":
            for line in opens.findall(file.read_text()):
                found.setdefault(folder, []).append(f"{path}: {line.strip()}")
    return found


def _functions_of_the_queue() -> dict[str, tuple[bool, set[str]]]:
    """Return for each function, as `module.name`: whether it writes a table by itself, and what it calls."""
    functions: dict[str, tuple[bool, set[str]]] = {}
    for file in sorted((ROOT / "control/gleaner/control/queue").glob("*.py")):
        tree = ast.parse(file.read_text())
        imported = {
            alias.asname or alias.name: f"{(statement.module or '').rpartition('.')[2]}.{alias.name}"
            for statement in tree.body
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("gleaner.control.queue.")
            for alias in statement.names
        }
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            writes, calls = False, set[str]()
            for call in ast.walk(node):
                match call:
                    case ast.Call(func=ast.Name("insert" | "update" | "delete" | "insert_unless_there")):
                        writes = True
                    case ast.Call(func=ast.Name(name)):
                        calls.add(imported.get(name, f"{file.stem}.{name}"))
                    case ast.Call(func=ast.Attribute(ast.Name(module), name)):
                        calls.add(f"{module}.{name}")
                    case _:
                        pass
            functions[f"{file.stem}.{node.name}"] = writes, calls
    return functions


@functools.cache
def _changes_without_a_verb() -> dict[str, list[str]]:
    """Return the public functions of the queue that write a table, or call one that does, and begin with no verb."""
    functions = _functions_of_the_queue()
    changing = {name for name, (writes, _calls) in functions.items() if writes}
    while more := {name for name, (_writes, calls) in functions.items() if calls & changing} - changing:
        changing |= more
    assert len(changing) > 50, "the search for what changes the queue finds too little"
    names = {name: name.partition(".")[2] for name in changing}
    return {
        name: [f"control/queue: {name} changes the queue"]
        for name, function in names.items()
        if not function.startswith("_") and function.partition("_")[0] not in VERBS
    }


def _lines(found: dict[str, list[str]]) -> list[str]:
    return [line for lines in found.values() for line in lines]


def test_retired_words_do_not_come_back() -> None:
    wrong = [f"{line}\n    say {RETIRED[word][1]}" for word in RETIRED for line in _lines(_retired_words()[word])]
    assert not wrong, "\n".join(wrong)


def test_retired_names_of_modules_do_not_come_back() -> None:
    wrong = _lines(_retired_modules())
    assert not wrong, "\n".join(wrong)


def test_no_docstring_opens_with_a_bare_question_word() -> None:
    wrong = _lines(_bare_docstrings())
    assert not wrong, "begin with an imperative, 'Return', or a noun:\n" + "\n".join(wrong)


def test_what_changes_the_queue_begins_with_a_verb() -> None:
    wrong = _lines(_changes_without_a_verb())
    assert not wrong, "begin with a verb:\n" + "\n".join(wrong)
