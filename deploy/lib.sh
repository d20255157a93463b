# Shared by the scripts in deploy/ and images/, which source it: the place of our own engine, and commands to use it.
# shellcheck shell=bash

repo_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run_dir=/run/gleaner                     # sockets and pid files: gone after a reboot
data_dir=/var/lib/gleaner                # images, storage, logs: kept
cluster_dir=$data_dir/cluster
socket=$run_dir/docker.sock
cluster_label=org.gleaner.cluster=demo

export DOCKER_HOST=unix://$socket
export DOCKER_BUILDKIT=0                 # Debian's engine has no buildx plug-in
export COMPOSE_PROJECT_NAME=gleaner
unset DOCKER_CONTEXT DOCKER_TLS_VERIFY DOCKER_CERT_PATH

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
as_root() { [ "$(id -u)" = 0 ] || die "must be run as root"; }

# Debian's client is preferred, because a client of another version might be earlier on the PATH.
docker_client=/usr/bin/docker
[ -x $docker_client ] || docker_client=docker
docker() { command "$docker_client" "$@"; }

# Run Compose, which is either the plug-in or Debian 12's docker-compose 1.29. Only this function distinguishes them.
compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose -f "$repo_dir/deploy/compose.yaml" "$@"
    else
        docker-compose -f "$repo_dir/deploy/compose.yaml" "$@"
    fi
}

# wait_for SECONDS COMMAND...: true as soon as COMMAND is true, and false after SECONDS.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.3
    done
}

# The Debian mirror that this machine's apt uses, without its security archive and other sources.
mirror() {
    apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }'
}
