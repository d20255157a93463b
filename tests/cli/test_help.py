"""`glean --help` names every verb, and imports none of them."""

import subprocess
import sys

import pytest

from gleaner.control.cli import app
from gleaner.control.cli.lazy_verb import LazyVerb


@pytest.mark.parametrize("verb", app.VERBS, ids=lambda verb: verb.name)
def test_the_line_of_a_verb_is_the_first_sentence_of_its_own_help(verb: LazyVerb) -> None:
    assert verb.get_short_help_str(1000) == verb.whole.get_short_help_str(1000)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_the_names_of_the_verbs_need_none_of_their_libraries(asked: str) -> None:
    program = f"import sys, gleaner.control.cli.app as app; app.run([{asked!r}]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    heavy = {"httpx", "jinja2", "matplotlib", "numba", "numpy", "pydantic", "rich", "scipy", "yaml"}
    assert heavy & set(done.stdout.splitlines()[-1].split()) == set()


def test_a_module_that_cannot_be_imported_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = LazyVerb("web", "Print.", "no_such_module:web")
    monkeypatch.setitem(app.command().commands, "web", broken)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        app.run(["web"])
