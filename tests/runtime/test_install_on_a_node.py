"""Installing beside an engine that runs: a second engine in a node, where nobody minds, with settings of its own."""

from collections.abc import Iterator

import pytest
from tests.runtime import nodes_harness
from tests.runtime.nodes_harness import Node
from tests.runtime.shim_harness import Shimmed

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

# A mount namespace in which /run, /etc/docker, /etc/gleaner and our programs are empty and private, with an engine.
BEGIN = """
set -eu
for place in /run /etc/docker /etc/gleaner /usr/local/lib /var/lib/docker; do
    mount -t tmpfs -o exec,mode=0755 private $place
done
for place in /usr/local/sbin /etc/tmpfiles.d; do
    cp -a $place /run/copy; mkdir -p $place; mount -t tmpfs -o exec,mode=0755 private $place
    cp -a /run/copy/. $place
    rm -rf /run/copy
done
rm -f /usr/local/sbin/gleaner-runc /etc/tmpfiles.d/gleaner.conf
FLAGS="--iptables=false --ip-forward=false --bridge=none --storage-driver=vfs"
start() {
    dockerd $FLAGS "$@" >/run/dockerd.log 2>&1 &
    for try in $(seq 100); do docker version >/dev/null 2>&1 && return 0; sleep 0.2; done
    tail -5 /run/dockerd.log; return 1
}
install_node() { /usr/local/libexec/gleaner/install-node.sh "$@" 2>&1 || echo "status $?"; }
known() { docker info --format '{{json .Runtimes}}' | grep -c '"gleaner"' || true; }
since() { stat -c %Y /proc/$(cat /run/docker.pid); }
finish() { kill $(cat /run/docker.pid) 2>/dev/null || true; wait || true; }
trap finish EXIT
"""


@pytest.fixture
def shimmed(node: Node) -> Iterator[Shimmed]:
    yield Shimmed(node, nodes_harness.NAMES[0])
    node.clear()


def told(shimmed: Shimmed, script: str) -> str:
    return shimmed.run("unshare", "-m", "bash", "-c", BEGIN + script, timeout_s=120)


def test_a_running_engine_is_reloaded_and_all_its_settings_stay(shimmed: Shimmed) -> None:
    said = told(shimmed, """
        echo '{"debug": true, "experimental": true, "runtimes": {"other": {"path": "/bin/runc"}}}' >/run/before
        cp /run/before /etc/docker/daemon.json
        start
        pid=$(cat /run/docker.pid)
        install_node --yes
        echo "known $(known)" "same $([ "$pid" = "$(cat /run/docker.pid)" ] && echo yes)"
        python3 -c 'import json; d = json.load(open("/etc/docker/daemon.json")); print(*d, *d["runtimes"])'
        install_node --yes
        install_node --remove --yes
        echo "known $(known)"
        python3 -c 'import json; print(json.load(open("/etc/docker/daemon.json")) == json.load(open("/run/before")))'
        ls /usr/local/lib /etc/gleaner
    """)  # fmt: skip
    for expected in (
        "Docker has been reloaded, and knows the runtime",
        "known 1 same yes",
        "debug experimental runtimes other gleaner",
        "all is as it should be",
        "known 0",
        "True",
    ):
        assert expected in said.splitlines(), said
    assert "status" not in said


@pytest.mark.extended
def test_an_engine_without_its_experimental_part_is_not_restarted_unasked(shimmed: Shimmed) -> None:
    said = told(shimmed, """
        start
        pid=$(cat /run/docker.pid)
        install_node --yes
        echo "known $(known)"
        install_node --yes --restart-docker
        echo "same $([ "$pid" = "$(cat /run/docker.pid)" ] && echo yes)"
    """)  # fmt: skip
    assert "NOTE: Docker saves containers only after a restart" in said
    assert "known 1" in said
    assert "no service manager runs it here: restart dockerd" in said
    assert "same yes" in said


@pytest.mark.extended
def test_a_change_that_the_engine_would_not_start_with_is_not_made(shimmed: Shimmed) -> None:
    """A key that is unknown to it; and what it was given as a flag already is not written down a second time."""
    said = told(shimmed, """
        start --experimental
        install_node --yes
        cat /etc/docker/daemon.json
        echo "known $(known)"
        echo '{"no-such-key": 1}' >/etc/docker/daemon.json
        rm -rf /usr/local/lib/gleaner
        install_node --yes
        cat /etc/docker/daemon.json
        ls /usr/local/lib
    """)  # fmt: skip
    assert "known 1" in said
    assert "experimental" not in said.split("known 1")[0].split("{", 1)[1]
    assert "daemon.json stays as it is: Docker would not start with the change" in said
    assert said.rstrip().endswith('{"no-such-key": 1}')


def test_an_engine_that_does_not_run_finds_it_at_its_start(shimmed: Shimmed) -> None:
    said = told(shimmed, """
        install_node --yes
        start
        echo "known $(known) $(docker version --format '{{.Server.Experimental}}')"
        ls -ld /run/gleaner-agent
    """)  # fmt: skip
    assert "it will have the runtime when it starts" in said
    assert "known 1 true" in said
    assert "drwx------ 2 gleaner gleaner" in said


@pytest.mark.extended
def test_an_engine_with_a_foreign_container_is_not_restarted_even_if_asked(shimmed: Shimmed) -> None:
    said = told(shimmed, """
        start --cgroup-parent /gleaner-tests
        libraries=$(ldd /usr/bin/sleep | grep -o '/lib[^ ]*' | cut -c2-)
        tar -C / -ch usr/bin/sleep $libraries 2>/dev/null | docker import - tiny >/dev/null
        docker run -d --network none --label org.gleaner.agent=x tiny sleep 60 >/dev/null
        docker run -d --network none tiny sleep 60 >/dev/null
        install_node --yes --restart-docker
        docker ps -q | wc -l
        docker rm -f $(docker ps -q) >/dev/null
    """)  # fmt: skip
    assert "1 containers run there that are not ours" in said
    assert said.splitlines()[-1] == "2"
