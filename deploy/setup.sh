#!/usr/bin/env bash
# Install the packages that a fresh Debian 12 machine lacks: setup.sh [--tests | --own-image | --machine]. Run it as root.
# A second run finds nothing to do.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

log=$data_dir/setup.log
updated=

as_root
case ${1:-}${2+ more} in "" | --tests | --own-image | --machine) ;; *) die "usage: setup.sh [--tests | --own-image | --machine]" ;; esac
command -v apt-get >/dev/null || die "this machine has no apt-get; install Docker Engine, compose and Python by hand"
mkdir -p "$data_dir"
chmod 711 "$data_dir"

# need NAME 'TEST' PACKAGE...: add the packages to the list, unless the test succeeds
need() {
    if eval "$2" >/dev/null 2>&1; then
        say "setup: $1: present"
    else
        names+=("$1")
        checks+=("$2")
        packages+=("${@:3}")
    fi
}

# Install the whole list in one transaction. dpkg syncs to the disk as usual, because it may also upgrade packages of
# this machine, which must survive a power failure.
install_wanted() {
    [ ${#packages[@]} -gt 0 ] || return 0
    export DEBIAN_FRONTEND=noninteractive
    # A failure is ignored, because packages may be found even if one of several sources is broken.
    [ -n "$updated" ] || apt-get -q update >>"$log" 2>&1 || true
    updated=yes
    # No package may start its service, because engine.sh starts our engine, and the tests start PostgreSQL.
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && trap 'rm -f $policy' EXIT; }
    apt-get -q -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${packages[@]}" >>"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        die "not installed: $(listed "${names[@]}") (apt-get install ${packages[*]}); see $log, mend apt's sources and run this again"
    }
    local i
    for i in "${!names[@]}"; do
        eval "${checks[i]}" >/dev/null 2>&1 || die "${names[i]} is installed (${packages[*]}) and still does not work: ${checks[i]}"
        say "setup: ${names[i]}: installed"
    done
    names=() checks=() packages=()
}
listed() { printf '%s\n' "$@" | paste -sd, | sed 's/,/, /g'; }

policy=/usr/sbin/policy-rc.d
names=() checks=() packages=()
: >"$log"
need "Docker Engine" "command -v dockerd && command -v containerd && command -v runc" docker.io
need "packet filter" "command -v iptables" iptables
need "compose" "compose version" docker-compose
need "C compiler" "echo 'int main(void) { return 0; }' | cc -static -x c -o /dev/null -" gcc libc6-dev
need "openssl" "command -v openssl" openssl
need "Python's venv" "python3 -c 'import ensurepip, venv'" python3-venv python3-pip
if [ "${1:-}" = --machine ]; then
    need "an emulated machine" "command -v qemu-system-x86_64 && command -v mkfs.ext4" qemu-system-x86 e2fsprogs
    need "mmdebstrap" "command -v mmdebstrap" mmdebstrap
elif [ $# = 1 ]; then
    need "SIF's tools" "command -v siftool && command -v mksquashfs && command -v unsquashfs" siftool squashfs-tools
fi
if [ "${1:-}" = --tests ]; then
    need "C++ compiler" "command -v g++" g++
    need "PostgreSQL" "ls /usr/lib/postgresql/*/bin/initdb" postgresql
    need "Chromium" "command -v chromium" chromium
    need "a registry of images" "command -v docker-registry && command -v skopeo" docker-registry skopeo
    need "munge" "command -v munged && command -v munge && command -v unmunge" munge
    need "XRootD, with tokens" "command -v xrootd && ls /usr/lib/*/libXrdAccSciTokens-*.so" xrootd-server xrootd-scitokens-plugins
    [ "${GLEANER_TESTS:-}" != all ] || need "promtool" "command -v promtool" prometheus
fi
install_wanted
"$repo_dir/deploy/engine.sh" start
# The base image is made from the Debian mirror only if no registry answers, which can be checked only now.
need "mmdebstrap, or a registry" "command -v mmdebstrap || docker image inspect debian:trixie-slim || timeout 60 docker pull -q debian:trixie-slim" mmdebstrap
install_wanted
