"""The Debian packages: built, installed in a fresh container, and removed without a trace."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.reference import DOCKER

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

ROOT = Path(__file__).parents[2]
FILES = r"find / -xdev \( -type f -o -type l \) -path '*glean*' -not -path '/packages/*' -not -path '/proc/*' | sort"


def run(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return a fresh machine with Debian 13, and the packages in /packages."""
    folder = tmp_path_factory.mktemp("packages")
    run("packaging/build.sh", str(folder))
    name = "gleaner-packages"
    options = ("--rm", "--network", "host", "--label", "org.gleaner.cluster=demo", "--volume", f"{folder}:/packages:ro")
    run(*DOCKER, "run", "--detach", "--name", name, *options, "debian:trixie-slim", "sleep", "1800")
    try:
        run(*DOCKER, "exec", name, "apt-get", "-q", "update")
        yield name
    finally:
        run(*DOCKER, "rm", "--force", name)


def inside(machine: str, script: str) -> str:
    return run(*DOCKER, "exec", "--env", "DEBIAN_FRONTEND=noninteractive", machine, "sh", "-c", script)


def test_packages_are_installed_and_removed_without_a_trace(machine: str) -> None:
    assert inside(machine, FILES) == ""
    inside(machine, "apt-get -q install -y --no-install-recommends /packages/*.deb")
    assert "Usage: glean" in inside(machine, "glean --help")
    assert "glean-agent" in inside(machine, "glean-agent --help")
    assert "usage: gleaner-slurm-admin" in inside(machine, "gleaner-slurm-admin --help")
    assert "the queue's schema is up to date" in inside(
        machine, "mkdir /q && GLEANER_QUEUE__URL=sqlite:////q/queue.db glean control migrate && rm -r /q"
    )
    assert "_glean_completion" in inside(machine, "cat /usr/share/bash-completion/completions/glean")
    role = "glean setup node --root /"
    assert "node: set up" in inside(machine, f"{role} --url https://head:8642 --yes")
    assert inside(machine, f"{role} --yes") == "node: all is as it should be\n"
    inside(machine, f"{role} --remove --purge --yes")
    listed = inside(machine, "dpkg -L gleaner-client")
    assert "/usr/share/man/man1/glean-submit.1.gz" in listed
    inside(machine, "apt-get -q purge -y 'gleaner-*'")
    assert inside(machine, FILES) == ""


def test_the_role_of_ansible_sets_up_a_node_and_changes_nothing_the_second_time(machine: str) -> None:
    run(*DOCKER, "cp", "deploy/ansible", f"{machine}:/ansible")
    inside(machine, "apt-get -q install -y --no-install-recommends ansible-core slurm-client")
    inside(machine, """echo '{"url": "https://head:8642"}' >/join.json""")
    options = "-e gleaner_hosts=all -e gleaner_packages=/packages -e gleaner_join=/join.json"
    play = f"ansible-playbook -i node1, -c local /ansible/nodes.yml {options}"
    assert "changed=3" in inside(machine, play)
    assert "https://head:8642" in inside(machine, "cat /etc/gleaner/agent.toml")
    assert "changed=0" in inside(machine, play)
    inside(machine, "glean setup node --remove --purge --yes && apt-get -q purge -y 'gleaner-*'")
