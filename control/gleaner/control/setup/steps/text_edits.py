"""Our lines in the text files of a site, and how they are taken out again. Pure.

New lines stand between two markers at the end. A line that had to change stays above ours, as a comment.
"""

from collections.abc import Callable, Sequence

from gleaner.control.setup.steps.changes import SetupRefused

BEGIN = "# BEGIN gleaner: by glean setup; --remove takes it out"
BEGIN_AFTER_OPEN_END = f"{BEGIN} (the line before had no end)"
END = "# END gleaner"
BEFORE = "# gleaner, before: "


def without(text: str) -> str:
    r"""Return a text without our lines. Raises `SetupRefused` if our markers do not fit together.

    >>> without("a=1\n" + BEFORE + "b=2\nb=3\n" + BEGIN + "\nc=4\n" + END + "\n")
    'a=1\nb=2\n'
    """
    lines = text.split("\n")
    kept: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line in (BEGIN, BEGIN_AFTER_OPEN_END):
            if END not in lines[at:]:
                raise SetupRefused(f"the line {END!r} is missing after {BEGIN!r}: mend that by hand")
            at = lines.index(END, at) + 1
            if line == BEGIN_AFTER_OPEN_END and lines[at:] == [""]:
                at += 1
        elif line.startswith(BEFORE):
            while at < len(lines) and lines[at].startswith(BEFORE):
                kept.append(lines[at].removeprefix(BEFORE))
                at += 1
            at += 1  # the line of ours that stands for them
        else:
            kept.append(line)
            at += 1
    return "\n".join(kept)


def ours(text: str) -> list[str]:
    """Return the lines of a text that `without` takes out, or puts others in their places."""
    found: list[str] = []
    is_ours = follows = False
    for line in text.split("\n"):
        is_ours = is_ours or line in (BEGIN, BEGIN_AFTER_OPEN_END)
        if is_ours or follows or line.startswith(BEFORE):
            found.append(BEGIN if line == BEGIN_AFTER_OPEN_END else line)
        follows = line.startswith(BEFORE)
        is_ours = is_ours and line != END
    return found


def with_block(text: str, lines: Sequence[str]) -> str:
    r"""Return a text that has none of our lines with these at its end.

    >>> with_block("a=1\n", ["c=4"]).splitlines()[1:]
    ['# BEGIN gleaner: by glean setup; --remove takes it out', 'c=4', '# END gleaner']
    """
    if not lines:
        return text
    is_open = bool(text) and not text.endswith("\n")
    block = (BEGIN_AFTER_OPEN_END if is_open else BEGIN, *lines, END, "")
    return text + ("\n" if is_open else "") + "\n".join(block)


def with_missing(wanted: Sequence[str]) -> Callable[[str], str]:
    """Return an edit that adds those of the lines that a text lacks."""

    def edit(text: str) -> str:
        there = {line.strip() for line in text.split("\n")}
        return with_block(text, [line for line in wanted if line.strip() not in there])

    return edit


def replaced(line: str, new: str) -> list[str]:
    """Return the lines that stand for one that changes."""
    return [f"{BEFORE}{line}", new]
