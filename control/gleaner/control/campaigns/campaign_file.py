"""The translation of campaign files and of the options of `glean submit` into a submission.

Every value is kept with the place where it was written, so that an error message can name the line or the option. Texts
are kept as they are written (`--seed 007` stays `007`, and `no` is not `False`), because YAML's guesses at types are
ignored.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from gleaner.agent.common.quantities import duration_s, memory_mib, memory_range_mib
from gleaner.agent.job_spec import JobSpec, UrlInputSpec
from gleaner.agent.system import keep_patterns
from gleaner.control.campaigns import input_list
from gleaner.control.campaigns.given import Given
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.campaigns.parameter_files import RowsFile
from gleaner.control.campaigns.wrong_keys import INSTEAD
from gleaner.control.input_errors import InputError, at_line, complaint, one_line, read_text, unknown_key
from gleaner.control.models.jobs import Submission
from gleaner.control.models.parameters import MOST_JOBS

MOST_BYTES = 4 * 1024 * 1024
TEXTS = frozenset({"name", "image", "group", "max_failures"})
NUMBERS = frozenset({"cpus", "memory_mib", "nodes", "priority", "retries", "max_running", "try_first"})
CODES = frozenset({"retry_on", "never_retry_on"})
DURATIONS = {"compute_limit": "compute_limit_s", "needs_at_least": "needs_at_least_s", "silent_limit": "silent_limit_s"}
"""The keys that take a duration, and the names under which control receives it in seconds."""
RENAMED = DURATIONS | {"disk": "disk_mib"}
"""The keys whose value control receives under another name, which includes the unit."""
KEYS = (
    TEXTS
    | NUMBERS
    | CODES
    | RENAMED.keys()
    | {"command", "environment", "indices", "hold", "saves_itself", "inputs", "mounts", "outputs"}
    | {"parameters", "lines"}
)
SELF_SAVE = frozenset({"signal", "exit_code"})
OUTPUTS = frozenset({"keep", "to"})
OPTIONS_OF_OUTPUTS = {"keep": "keep", "deliver_to": "to"}
"""The options whose values are keys of `outputs`."""


def read(path: Path) -> dict[str, Given]:
    """Return the keys of a campaign file with their values. Raises an `InputError` that names the line."""
    with suppress(OSError):  # `read_text` reports it
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is larger than 4 MiB; is it a campaign file?")
    text = read_text(
        path,
        missing="no such file; give a campaign file, or --image IMAGE -- COMMAND",
        unreadable="; is it a campaign file?",
    )
    return parse(text, str(path))


def parse(text: str, name: str) -> dict[str, Given]:
    """Return the keys of a campaign file's text with their values. Error messages call the file `name`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = at_line(name, mark.line + 1) if mark else name
        raise InputError(f"{where}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:  # PyYAML lets Python's own errors pass
        raise InputError(f"{name}: not valid YAML: {error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{name}: must hold keys with values, for example `image: pythia`")
    found: dict[str, Given] = {}
    for key_node, value_node in root.value:
        where = _place(name, key_node)
        key = _text(key_node, where, "a key")
        if key not in KEYS:
            said = f"unknown key {key!r}: {INSTEAD[key]}" if key in INSTEAD else unknown_key(key, KEYS)
            raise InputError(f"{where}: {said}")
        if key in found:
            raise InputError(f"{where}: {key} is given twice")
        if key == "indices" and isinstance(value_node, yaml.ScalarNode):
            try:
                value_node.value, most = at_once(value_node.value)
            except ValueError as error:
                raise InputError(f"{where}: indices {error}") from None
            if most is not None:
                if "max_running" in found:
                    raise InputError(f"{where}: max_running is given twice, in indices also")
                found["max_running"] = Given(most, where)
        found[key] = Given(_value(key, value_node, name), where)
    return found


def at_once(text: str) -> tuple[str, int | None]:
    """Return the indices of an array, and the number after %, which is how many of its jobs can run at once.

    >>> at_once("1-5000%200"), at_once("1-5")
    (('1-5000', 200), ('1-5', None))
    """
    written, percent, most = text.partition("%")
    if percent and not re.fullmatch(r"\d{1,6}", most, flags=re.ASCII):
        raise ValueError(f"must have a number after %, as in 1-5000%200, found {_short(text)}")
    return written, int(most) if percent else None


def indices(text: str) -> tuple[int, ...]:
    """Return the indices of an array in Slurm's notation. Raises a `ValueError` that explains the mistake.

    >>> indices("0-2,10-20:5")
    (0, 1, 2, 10, 15, 20)
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?\s*", part, flags=re.ASCII)
        if match is None:
            raise ValueError(f"must be like 0-11 or 1,3,10-20:5, found {_short(text)}")
        first = int(match[1])
        last = int(match[2] or first)
        step = int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"{part.strip()} holds no index")
        some = range(first, last + 1, step)
        if len(found) + len(some) > MOST_JOBS:
            raise ValueError(f"hold at most {MOST_JOBS:,} runs, found {len(found) + len(some):,} in {_short(text)}")
        found.extend(some)
    return _without_twins(found)


def self_save(text: str) -> dict[str, object]:
    """Return how a workload saves itself, as an option describes it. Raises a `ValueError` that explains the mistake.

    >>> self_save("SIGUSR1:85"), self_save("SIGTERM")
    ({'signal': 'SIGUSR1', 'exit_code': 85}, {'signal': 'SIGTERM'})
    """
    match = re.fullmatch(r"(SIG[A-Z0-9]+)(?::(\d{1,9}))?", text, flags=re.ASCII)
    if match is None:
        raise ValueError(f"must be like SIGTERM or SIGUSR1:85, a signal and an exit code, found {text!r}")
    found: dict[str, object] = {"signal": match[1]}
    if match[2]:
        found["exit_code"] = int(match[2])
    return found


def exit_codes(text: str) -> tuple[int, ...]:
    """Return the exit codes that an option names. Raises a `ValueError` that explains the mistake.

    >>> exit_codes("75,137")
    (75, 137)
    """
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text, flags=re.ASCII):
        raise ValueError(f"must be exit codes like 75 or 75,137, found {_short(text)}")
    return tuple(int(code) for code in text.split(","))


def default_name(image: str) -> str:
    """Return the default name of a job, which is the last part of the container image's name, without the tag.

    >>> default_name("registry.example.org:5000/hep/pythia:8.3")
    'pythia'
    """
    last = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:63] or "job"


def submission(given: Mapping[str, Given]) -> Submission:
    """Return the submission for control. Raises an `InputError` that names the place of the first wrong value."""
    values = {RENAMED.get(key, key): value.value for key, value in given.items()}
    if isinstance(memory := values.get("memory_mib"), tuple):
        values["memory_mib"], values["most_memory_mib"] = memory
    parts = {OPTIONS_OF_OUTPUTS[key]: values.pop(key) for key in OPTIONS_OF_OUTPUTS if key in values}
    if parts:
        values["outputs"] = {**cast("dict[str, object]", values.get("outputs", {})), **parts}
    if "image" not in values:
        raise InputError(f"image is missing in {_file(given)}; it names the container image to run")
    values.setdefault("name", default_name(str(values["image"])))
    if any(isinstance(one, LocalInput) for one in cast("tuple[object, ...]", values.get("inputs", ()))):
        raise InputError(f"{given['inputs'].where}: inputs are files of your own machine: use `glean submit`")
    if files := [value for value in given.values() if isinstance(value.value, RowsFile)]:
        raise InputError(f"{files[0].where}: the parameters are in a file of your own machine: use `glean submit`")
    job = {key: value for key, value in values.items() if key in JobSpec.model_fields}
    rest = {key: value for key, value in values.items() if key not in JobSpec.model_fields}
    try:
        return Submission.model_validate({"job": job, **rest})
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        if first["type"] == "wrong_use":
            path = [first.get("ctx", {})["field"]]
        field = path[1] if path[0] == "job" else path[0]
        names = RENAMED | {"memory_mib": "most_memory_mib"}
        key = next((key for key, name in names.items() if name == field), field)
        if key == "outputs":
            key = next((option for option, name in OPTIONS_OF_OUTPUTS.items() if name in path and option in given), key)
        where = given[key].where if key in given else ""
        inner = ""
        if key in {"saves_itself", "outputs", "parameters"}:
            inner = "".join(f" {part}" for part in path[2:] if not part.isdigit() and part != "[key]")
        if not where or where.startswith("--"):
            raise InputError(complaint((where or key) + inner, first)) from None
        raise InputError(f"{where}: {complaint(key + inner, first)}") from None


def as_submitted(spec: JobSpec) -> str:
    """Return the campaign file that would submit jobs with this specification. It names inputs by their digests,
    because control does not know their paths."""
    units = {name: (key, "s" if key in DURATIONS else "M") for key, name in RENAMED.items()}
    written: dict[str, object] = {}
    for name, value in spec.model_dump(mode="json", exclude_defaults=True).items():
        key, unit = units.get(name, (name, ""))
        written[key] = f"{value}{unit}" if unit else value
    if spec.most_memory_mib is not None:
        written["memory_mib"] = f"{spec.memory_mib}..{written.pop('most_memory_mib')}"
    return yaml.safe_dump(written, sort_keys=False, default_flow_style=None, width=100).rstrip()


def _short(text: str) -> str:
    """Return the text as it was written, or its beginning if it is long."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _file(given: Mapping[str, Given]) -> str:
    return next((value.where.partition(", line")[0] for value in given.values()), "the file")


def _place(name: str, node: yaml.Node) -> str:
    return at_line(name, node.start_mark.line + 1)


def _value(key: str, node: yaml.Node, name: str) -> object:
    where = _place(name, node)
    if key in TEXTS:
        return _text(node, where, key)
    if key == "memory_mib" or key in RENAMED:
        parse = {"memory_mib": memory_range_mib, "disk": memory_mib}.get(key, duration_s)
        try:
            return parse(_text(node, where, key))
        except ValueError as error:
            raise InputError(f"{where}: {key} {error}") from None
    if key in NUMBERS:
        return _number(node, where, key)
    if key == "hold":
        written = _text(node, where, key)
        if written not in {"true", "false"}:
            raise InputError(f"{where}: hold must be true or false, found {written!r}")
        return written == "true"
    if key == "command":
        return tuple(_text(item, _place(name, item), "an argument") for item in _items(node, where, key))
    if key == "lines" or (key == "parameters" and isinstance(node, yaml.ScalarNode)):
        return RowsFile(_text(node, where, key), is_lines=key == "lines")
    mappings = {"environment": _pairs, "saves_itself": _self_save, "outputs": _outputs, "parameters": _grid}
    if key in mappings:
        return mappings[key](node, name, where)
    if key == "inputs":
        return tuple(_input(item, name) for item in _items(node, where, key))
    if key == "mounts":
        return tuple(_text(item, _place(name, item), "a mount") for item in _items(node, where, key))
    if key in CODES:
        return _exit_codes(key, node, name)
    return _indices(node, name, where)


def _number(node: yaml.Node, where: str, what: str) -> int:
    written = _text(node, where, what)
    if not re.fullmatch(r"[-+]?\d{1,18}", written, flags=re.ASCII):
        raise InputError(f"{where}: {what} must be a whole number, found {written!r}")
    return int(written)


def _text(node: yaml.Node, where: str, what: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        hint = ""
        if isinstance(node, yaml.MappingNode) and [key.value for key, _ in node.value] == ["index"]:  # YAML's braces
            hint = '; write "{index}", with quotation marks'
        raise InputError(f"{where}: {what} must be a single value, found a {_kind(node)}{hint}")
    return str(node.value)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "single value"
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"


def _items(node: yaml.Node, where: str, key: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise InputError(f"{where}: {key} must be a list like [a, b], found a {_kind(node)}")
    return list(node.value)


def _pairs(node: yaml.Node, name: str, where: str) -> dict[str, str]:
    keys = _keys_of("environment", node, name, where, allowed=None, like="{K: V}")
    return {key: _text(value, place, f"environment {key}") for key, (value, place) in keys.items()}


def _self_save(node: yaml.Node, name: str, where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    keys = _keys_of("saves_itself", node, name, where, allowed=SELF_SAVE, like="{signal: SIGTERM, exit_code: 85}")
    for key, (value, place) in keys.items():
        what = f"saves_itself {key}"
        found[key] = _number(value, place, what) if key == "exit_code" else _text(value, place, what)
    return found


def _outputs(node: yaml.Node, name: str, where: str) -> dict[str, object]:
    keys = _keys_of("outputs", node, name, where, allowed=OUTPUTS, like='{keep: ["*.root"]}')
    found: dict[str, object] = {}
    for key, (value, place) in keys.items():
        if key == "to":
            found[key] = _text(value, place, "outputs to")
            continue
        items = _items(value, place, f"outputs {key}")
        if not items:
            raise InputError(f"{place}: outputs {key} names no pattern; to keep everything, leave it out")
        found[key] = tuple(_pattern(item, _place(name, item)) for item in items)
    return found


def _pattern(node: yaml.Node, where: str) -> str:
    pattern = _text(node, where, "a pattern")
    if why := keep_patterns.fault(pattern):
        raise InputError(f"{where}: outputs keep: {_short(pattern)} {why}")
    return pattern


def _grid(node: yaml.Node, name: str, where: str) -> dict[str, object]:
    keys = _keys_of("parameters", node, name, where, allowed=None, like="{mass: [100, 200], seed: 1-50}")
    return {"values": {key: _column(value, place, name, f"parameters {key}") for key, (value, place) in keys.items()}}


def _column(node: yaml.Node, where: str, name: str, what: str) -> tuple[str, ...]:
    """Return the values of a parameter: those of a list, of a range like 1-50, or a single value."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(_text(item, _place(name, item), f"a value of {what}") for item in node.value)
    written = _text(node, where, what)
    if not re.fullmatch(r"\d+-\d+(:\d+)?", written, flags=re.ASCII):
        return (written,)
    try:
        return tuple(map(str, indices(written)))
    except ValueError as error:
        raise InputError(f"{where}: {what} {error}") from None


def _keys_of(
    what: str, node: yaml.Node, name: str, where: str, *, allowed: frozenset[str] | None, like: str
) -> dict[str, tuple[yaml.Node, str]]:
    """Return the keys of a mapping with their values, and the place of each."""
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{where}: {what} must be keys with values like {like}, found a {_kind(node)}")
    found: dict[str, tuple[yaml.Node, str]] = {}
    for key_node, value_node in node.value:
        place = _place(name, key_node)
        key = _text(key_node, place, f"a key of {what}")
        if allowed is not None and key not in allowed:
            raise InputError(f"{place}: {what}: {unknown_key(key, allowed)}")
        if key in found:
            raise InputError(f"{place}: {what} has {key} twice")
        found[key] = (value_node, place)
    return found


def _input(node: yaml.Node, name: str) -> LocalInput | UrlInputSpec:
    where = _place(name, node)
    if isinstance(node, yaml.ScalarNode):
        written = {"from": str(node.value)}
    else:
        keys = _keys_of("inputs", node, name, where, allowed=input_list.KEYS, like="{from: PATH, to: NAME}")
        written = {key: _text(value, place, f"inputs {key}") for key, (value, place) in keys.items()}
    try:
        return input_list.parsed(written, where)
    except ValueError as error:
        raise InputError(one_line(f"{where}: inputs: {error}")) from None


def _exit_codes(key: str, node: yaml.Node, name: str) -> tuple[int, ...]:
    where = _place(name, node)
    if isinstance(node, yaml.ScalarNode):
        return (_number(node, where, key),)
    codes = tuple(_number(item, _place(name, item), "an exit code") for item in _items(node, where, key))
    if not codes:
        raise InputError(f"{where}: {key} names no exit code; leave the key out, or name some, as in [75, 137]")
    return codes


def _indices(node: yaml.Node, name: str, where: str) -> tuple[int, ...]:
    try:
        if isinstance(node, yaml.SequenceNode):
            return _without_twins(
                i for item in node.value for i in indices(_text(item, _place(name, item), "an index"))
            )
        return indices(_text(node, where, "indices"))
    except ValueError as error:
        raise InputError(f"{where}: indices {error}") from None


def _without_twins(found: Iterable[int]) -> tuple[int, ...]:
    """Return the indices. Raises `ValueError` if an index occurs twice, because its job would be computed twice."""
    seen: dict[int, None] = {}
    for index in found:
        if index in seen:
            raise ValueError(f"name {index} twice")
        seen[index] = None
    return tuple(seen)
