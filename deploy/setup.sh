#!/usr/bin/env bash
# Install what a fresh Debian 12 machine lacks: setup.sh [--tests]. Run as root; a second run finds nothing to do.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

log=$data_dir/setup.log
updated=

as_root
[ $# = 0 ] || { [ $# = 1 ] && [ "$1" = --tests ]; } || die "usage: setup.sh [--tests]"
command -v apt-get >/dev/null || die "this machine has no apt-get; install Docker Engine, compose and Python by hand"
mkdir -p "$data_dir"
chmod 711 "$data_dir"

# need NAME 'TEST' PACKAGE...: installs the packages unless the test succeeds
need() {
    local what=$1 test=$2
    shift 2
    if eval "$test" >/dev/null 2>&1; then
        say "setup: $what: present"
        return
    fi
    export DEBIAN_FRONTEND=noninteractive
    # One source of several may be broken and the packages still be found, so only the install decides.
    [ -n "$updated" ] || apt-get -q update >>"$log" 2>&1 || true
    updated=yes
    # No service of a package is to start: our engine is started by engine.sh, and PostgreSQL by the tests.
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }
    apt-get -q install -y --no-install-recommends "$@" >>"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        die "$what could not be installed (apt-get install $*); see $log, mend apt's sources and run this again"
    }
    eval "$test" >/dev/null 2>&1 || die "$what is installed ($*) and still does not work: $test"
    say "setup: $what: installed"
}

policy=/usr/sbin/policy-rc.d
: >"$log"
need "Docker Engine" "command -v dockerd && command -v containerd && command -v runc" docker.io
need "packet filter" "command -v iptables" iptables
need "compose" "compose version" docker-compose
need "openssl" "command -v openssl" openssl
need "Python's venv" "python3 -c 'import ensurepip, venv'" python3-venv python3-pip
"$repo_dir/deploy/engine.sh" start
# The base image is made from the Debian mirror only where no registry answers.
need "mmdebstrap, or a registry" "command -v mmdebstrap || docker image inspect debian:trixie-slim || timeout 60 docker pull -q debian:trixie-slim" mmdebstrap
[ "${1:-}" = --tests ] || exit 0
need "PostgreSQL" "ls /usr/lib/postgresql/*/bin/initdb" postgresql
need "Chromium" "command -v chromium" chromium
need "munge" "command -v munged && command -v munge && command -v unmunge" munge
