"""`deploy/engine.sh start` waits for a slow engine, and not for a dead one: the script itself, with stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"

# All of the script but the choice of the verb; then stand-ins for what reaches out of it.
PRETENDED = """
. <(sed '/^case "/,$d' engine.sh)
run_dir=$PWD_OF_TEST/run data_dir=$PWD_OF_TEST/data
log=$data_dir/engine.log containerd_socket=$run_dir/containerd.sock
mkdir -p $data_dir; DOCKER_HOST=unix://nowhere
as_root() { :; }; dockerd() { :; }
docker() { [ -e "$PWD_OF_TEST/answers" ] && echo 1.0; }
setsid() {
    sleep 1  # until here its command line is that of the script, as in the first moment of every new process
    case $1 in
        containerd) cd $run_dir; exec python3 -c "$LISTEN" ;;
        dockerd) [ "$IS_DEAD" = 0 ] || exit 1; touch "$PWD_OF_TEST/answers"; exec sleep 60 ;;
    esac
}
trap 'kill $(cat $run_dir/*.pid) 2>/dev/null' EXIT
start
"""
LISTEN = "import socket, time; socket.socket(socket.AF_UNIX).bind('containerd.sock'); time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize("is_dead", [False, True])
def test_an_engine_that_begins_slowly_is_waited_for_and_a_dead_one_is_not(tmp_path: Path, is_dead: bool) -> None:
    environment = os.environ | {"PWD_OF_TEST": str(tmp_path), "IS_DEAD": str(int(is_dead)), "LISTEN": LISTEN}
    words = ["bash", "-euo", "pipefail", "-c", PRETENDED]
    done = subprocess.run(words, cwd=DEPLOY, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if is_dead:
        assert done.returncode == 1
        assert "dockerd did not answer" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
        assert "engine: started (1.0)" in done.stdout
