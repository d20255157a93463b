#!/usr/bin/env bash
# Our own Docker Engine, beside any other on this machine: engine.sh start | stop | env
#
# It shares nothing with another engine. Socket, data, containerd, bridge and pid files are ours, and it does not change
# the machine's packet filter, because an engine that manages it deletes the chains of the other one at its start.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

log=$data_dir/engine.log
containerd_socket=$run_dir/containerd.sock

# Print the pid in file $1 if it is our $2. After a kill or a reboot, the number may belong to another process.
pid_of() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    if [ -n "$pid" ] && { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q "$2 .*$run_dir/"; then
        echo "$pid"
    fi
}

answers() { docker version --format '{{.Server.Version}}'; }

# True if the engine that was just launched answers, or has ended, so that no one waits for a dead one. Its command line
# is not checked, because in its first moment the process still has that of this script.
settled() { answers || [ ! -d "/proc/$(cat $run_dir/dockerd.pid)" ]; }

launch() { # launch PIDFILE COMMAND...: a daemon that outlives the caller's terminal
    local pid_file=$1
    shift
    setsid "$@" >>"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
}

failed() {
    tail -n 25 "$log" >&2
    die "$1; the end of $log stands above"
}

start() {
    as_root
    if [ -n "$(pid_of $run_dir/dockerd.pid dockerd)" ] && wait_for 20 answers; then
        say "engine: running ($(answers)) at $DOCKER_HOST"
        return
    fi
    command -v dockerd >/dev/null || die "dockerd is missing; run deploy/setup.sh first"
    stop >/dev/null
    mkdir -p $run_dir $data_dir/docker $data_dir/containerd
    chmod 711 $run_dir $data_dir
    : >"$log"
    rm -f $run_dir/*.pid $run_dir/*.sock
    echo '{}' >$run_dir/daemon.json # the machine's own /etc/docker/daemon.json belongs to the other engine
    printf 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n' >$run_dir/containerd.toml
    launch $run_dir/containerd.pid containerd --config $run_dir/containerd.toml --root $data_dir/containerd \
        --state $run_dir/containerd --address $containerd_socket
    wait_for 30 test -S $containerd_socket || failed "containerd did not start"
    launch $run_dir/dockerd.pid dockerd --experimental --bridge=none --iptables=false --ip-forward=false \
        --host "$DOCKER_HOST" --containerd $containerd_socket --data-root $data_dir/docker \
        --exec-root $run_dir/docker --pidfile $run_dir/engine.pid --config-file $run_dir/daemon.json
    wait_for 60 settled && answers >/dev/null 2>&1 || failed "dockerd did not answer"
    say "engine: started ($(answers)) at $DOCKER_HOST"
}

end() { # end PIDFILE NAME: end the process, by force if it does not end in time
    local pid
    pid=$(pid_of "$1" "$2")
    [ -n "$pid" ] || return 0
    kill -TERM "$pid" 2>/dev/null || true
    wait_for 40 test ! -d "/proc/$pid" || kill -KILL "$pid" 2>/dev/null || true
    rm -f "$1"
}

stop() {
    as_root
    end $run_dir/dockerd.pid dockerd
    end $run_dir/containerd.pid containerd
    # An engine that was killed leaves mounts in its folders.
    awk -v run=$run_dir/ -v data=$data_dir/docker '$5 ~ "^"run || $5 ~ "^"data { print $5 }' /proc/self/mountinfo |
        sort -r | xargs -r umount --lazy 2>/dev/null || true
    say "engine: stopped"
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    env) say "DOCKER_HOST=$DOCKER_HOST" ;;
    *) die "usage: engine.sh start|stop|env" ;;
esac
