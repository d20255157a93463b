# Shared by the scripts in deploy/ and images/ (sourced, not run): where our own engine lives, and how to speak to it.
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

# Debian's client comes first: another client of another version may stand earlier on the PATH.
docker_client=/usr/bin/docker
[ -x $docker_client ] || docker_client=docker
docker() { command "$docker_client" "$@"; }

# The one place that knows which Compose there is: the plug-in, or Debian 12's docker-compose 1.29.
compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose -f "$repo_dir/deploy/compose.yaml" "$@"
    else
        docker-compose -f "$repo_dir/deploy/compose.yaml" "$@"
    fi
}

# wait_for SECONDS COMMAND...: true as soon as COMMAND is, false after SECONDS.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.3
    done
}

# Debian's own mirror as this machine's apt knows it (not its security archive, nor anybody else's packages).
mirror() {
    apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }'
}
