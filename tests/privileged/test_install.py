"""Installing on a node: merged and not overwritten, the same the second time, and taken back to the byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged.install.docker_engine import InstallRefused, difference, merge, without

ROOT = Path(__file__).parents[2]
SHIM = "/usr/local/sbin/gleaner-runc"
DAEMON_JSON = "etc/docker/daemon.json"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
runtimes = st.dictionaries(st.sampled_from(["nvidia", "kata", "crun"]), st.fixed_dictionaries({"path": st.text()}))


@given(
    settings=st.dictionaries(st.sampled_from(["debug", "log-opts", "labels", "ä"]), values),
    others=st.none() | runtimes,
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    experimental=st.booleans(),
)
def test_all_else_is_kept_and_taking_back_leaves_what_was_there(
    settings: dict[str, object], others: dict[str, object] | None, indent: int | str | None, experimental: bool
) -> None:
    before = settings | ({} if others is None else {"runtimes": others})
    text = json.dumps(before, indent=indent, ensure_ascii=False) + "\n"
    new, added = merge(text, program=SHIM, experimental=experimental)
    after = json.loads(new)
    assert after["runtimes"].pop("gleaner") == {"path": SHIM}
    assert after.pop("experimental", False) == experimental
    assert {**before, "runtimes": others or {}} == after
    assert merge(new, program=SHIM, experimental=experimental) == (new, [])
    assert json.loads(without(new, program=SHIM, additions=added)) == before
    assert list(json.loads(without(new, program=SHIM, additions=added))) == list(before)


def test_only_our_lines_differ() -> None:
    text = '{\n  "debug": true,\n  "runtimes": {\n    "a": {\n      "path": "/a"\n    }\n  }\n}\n'
    new, _ = merge(text, program=SHIM, experimental=True)
    changed = [line for line in difference("d", text, new).splitlines()[2:] if line[0] in "+-"]
    assert [line for line in changed if line[0] == "-"] == ["-  }"]  # it has got a comma
    assert len(changed) <= 7


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "7", '"x"', '{"runtimes": []}', '{"runtimes": {"gleaner": {"path": "/other"}}}',
     '{"runtimes": {"gleaner": {"path": "/usr/local/sbin/gleaner-runc", "runtimeArgs": ["--debug"]}}}',
     '{"debug": true, "debug": false}', '{"experimental": false}', "[" * 100_000],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_settings_that_cannot_be_merged_are_left_alone(text: str) -> None:
    with pytest.raises(InstallRefused) as refused:
        merge(text, program=SHIM, experimental=True)
    assert "\n" not in str(refused.value)


def test_what_was_changed_since_is_not_taken_back() -> None:
    changed = json.dumps({"runtimes": {"gleaner": {"path": "/other"}}, "experimental": "yes"})
    assert without(changed, program=SHIM, additions=["runtimes", "runtimes.gleaner", "experimental"]) == changed


class Node:
    """A system that does not run, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("dockerd", "runc", "criu"):
            self.put(f"usr/sbin/{name}", "#!/bin/sh\n").chmod(0o755)
        (root / "usr/lib/tmpfiles.d").mkdir(parents=True)

    def put(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }

    def install(self, *options: str, yes: bool = True) -> "subprocess.CompletedProcess[str]":
        words = [str(ROOT / "deploy/install-node.sh"), "--from", str(ROOT / "agent")]
        words += ["--root", str(self.root), "--account", "4200", *(["--yes"] if yes else []), *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.mark.slow
def test_it_is_installed_once_and_removed_to_the_byte(node: Node) -> None:
    before = node.files()
    first = node.install()
    assert first.returncode == 0, first.stderr
    there = node.files()
    assert set(there) - set(before) >= {
        DAEMON_JSON, "etc/gleaner/privileged.json", "etc/tmpfiles.d/gleaner.conf", "usr/local/sbin/gleaner-runc",
        "usr/local/lib/gleaner/bin/criu", "usr/local/lib/gleaner/gleaner/agent/privileged/shim/main.py",
    }  # fmt: skip
    assert json.loads(there["etc/gleaner/privileged.json"]) == {
        "agent_uid": 4200, "runc": "/usr/sbin/runc", "criu": "/usr/sbin/criu",
    }  # fmt: skip
    second = node.install()
    assert (second.returncode, second.stdout) == (0, "all is as it should be\n")
    assert node.files() == there
    removed = node.install("--remove")
    assert removed.returncode == 0, removed.stderr
    assert node.files() == before
    assert not (node.root / "usr/local/lib/gleaner").exists()


def test_programs_are_roots_to_change_and_everybodys_to_read(node: Node) -> None:
    node.install()
    library = node.root / "usr/local/lib/gleaner"
    for path in (node.root / "usr/local/sbin/gleaner-runc", library, *library.rglob("*")):
        assert path.stat().st_mode & 0o022 == 0, path
        assert path.stat().st_mode & 0o044 == 0o044, path
    assert (library / "gleaner/agent/privileged/shim/__pycache__").is_dir()
    assert (library / "gleaner/agent/privileged/shim/notify.sh").stat().st_mode & 0o111
    program = (node.root / "usr/local/sbin/gleaner-runc").read_text()
    assert program.startswith("#!/usr/bin/python3 -IS\n")
    assert program.endswith("main('/usr/sbin/runc')\n")


@pytest.mark.slow
def test_settings_that_are_there_are_kept_and_survive_the_removal(node: Node) -> None:
    kept = '{"agent_uid": 77, "runc": "/usr/sbin/runc", "criu": "/usr/sbin/criu", "own": "/run/x"}'
    node.put("etc/gleaner/privileged.json", kept)
    for options in ([], ["--remove"]):
        assert node.install(*options).returncode == 0
        assert (node.root / "etc/gleaner/privileged.json").read_text() == kept


@pytest.mark.parametrize("kept", ["{", '{"agent_uid": 0}', '{"agent_uid": 1, "runc": "/usr/sbin/nothing"}'])
def test_settings_that_are_wrong_stop_it_before_anything_is_changed(node: Node, kept: str) -> None:
    node.put("etc/gleaner/privileged.json", kept)
    before = node.files()
    said = node.install()
    assert (said.returncode, len(said.stderr.splitlines())) == (1, 1)
    assert node.files() == before


def test_a_daemon_json_that_is_malformed_is_one_line_and_nothing_is_changed(node: Node) -> None:
    node.put(DAEMON_JSON, '{"debug": tru')
    before = node.files()
    said = node.install()
    assert said.returncode == 1
    assert said.stderr.startswith("install-node: /etc/docker/daemon.json stays as it is: it is no JSON")
    assert len(said.stderr.splitlines()) == 1
    assert node.files() == before


@pytest.mark.slow
def test_a_dry_run_shows_and_does_nothing(node: Node) -> None:
    node.put(DAEMON_JSON, '{\n    "debug": true\n}\n')
    before = node.files()
    said = node.install("--dry-run", yes=False)
    assert said.returncode == 0
    assert '+        "gleaner": {' in said.stdout
    assert "would write /usr/local/sbin/gleaner-runc" in said.stdout
    assert node.files() == before
    node.install()
    installed = node.files()
    assert '-        "gleaner": {' in node.install("--remove", "--dry-run", yes=False).stdout
    assert node.files() == installed


def test_nothing_is_changed_while_nobody_agrees(node: Node) -> None:
    before = node.files()
    said = node.install(yes=False)
    assert said.returncode == 1
    assert "say --yes" in said.stderr
    assert node.files() == before


@pytest.mark.slow
def test_the_mode_of_daemon_json_stays_and_the_one_before_is_kept(node: Node) -> None:
    before = '{"debug": true}'
    node.put(DAEMON_JSON, before).chmod(0o600)
    node.install()
    path = node.root / DAEMON_JSON
    assert path.stat().st_mode & 0o777 == 0o600
    assert Path(f"{path}.before-gleaner").read_text() == before
    node.install("--remove")
    assert json.loads(path.read_text()) == json.loads(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Path(f"{path}.before-gleaner").read_text() == before


def test_without_docker_the_rest_is_installed(node: Node) -> None:
    (node.root / "usr/sbin/dockerd").unlink()
    said = node.install()
    assert said.returncode == 0
    assert "no Docker Engine" in said.stdout
    assert not (node.root / DAEMON_JSON).exists()
    assert (node.root / "usr/local/lib/gleaner/bin/criu").exists()


def test_what_others_could_change_is_not_made_roots_program(node: Node) -> None:
    (node.root / "usr/sbin/criu").chmod(0o757)
    said = node.install()
    assert said.returncode == 1
    assert "is not root's alone" in said.stderr


ALL_MODULES = """
import importlib, os, sys
sys.path.insert(0, sys.argv[1])
found = []
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith(".py"):
            path = os.path.relpath(os.path.join(folder, name), sys.argv[1])
            found.append(path[:-3].replace("/", ".").replace(".__init__", ""))
for name in found:
    importlib.import_module(name)
print(*sorted(found))
"""


@pytest.mark.slow
def test_what_is_installed_needs_nothing_else_of_gleaner(node: Node) -> None:
    node.install()
    library = node.root / "usr/local/lib/gleaner"
    words = [sys.executable, "-IS", "-c", ALL_MODULES, str(library)]
    loaded = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert {"gleaner.agent.privileged.shim.transfer", "gleaner.agent.system.openat"} <= set(loaded)
    assert {name.split(".")[2] for name in loaded} == {"privileged", "system"}


@pytest.mark.slow
def test_a_file_that_was_changed_since_is_not_removed_and_an_old_module_is(node: Node) -> None:
    node.install()
    library = node.root / "usr/local/lib/gleaner"
    record = json.loads((library / "installed.json").read_text())
    record["files"]["/usr/local/lib/gleaner/gleaner/agent/privileged/old.py"] = "0"
    (library / "installed.json").write_text(json.dumps(record))
    (library / "gleaner/agent/privileged/old.py").touch()
    node.install()
    assert not (library / "gleaner/agent/privileged/old.py").exists()
    node.put("etc/tmpfiles.d/gleaner.conf", "mine\n")
    said = node.install("--remove")
    assert "keeping /etc/tmpfiles.d/gleaner.conf" in said.stdout
    assert (node.root / "etc/tmpfiles.d/gleaner.conf").read_text() == "mine\n"
    assert not library.exists()


def test_an_account_that_is_not_there_or_root_is_refused(node: Node) -> None:
    assert "there is no account 'nobody-of-this-name'" in node.install("--account", "nobody-of-this-name").stderr
    assert "agents cannot be root" in node.install("--account", "0").stderr
