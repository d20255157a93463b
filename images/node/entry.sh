#!/bin/bash
# What a compute node runs: munge, its own Docker Engine, Gleaner's watchdog, slurmd. Ends when one of them ends.
# /run is a fresh tmpfs at each start, so no pid file or socket of an earlier life is in the way.
# WITHOUT_SLURM=1: a node for the tests of the runtimes alone, with neither munge nor slurmd.
set -eu
with_slurm() { [ -z "${WITHOUT_SLURM:-}" ]; }

# Docker masks parts of /proc and makes others read-only; the engine and CRIU in here need them.
awk '$5 ~ "^/proc/" { print $5 }' /proc/self/mountinfo | sort -ru | while read -r mounted; do umount "$mounted" || true; done

mkdir -p /run/munge /run/slurm /var/log/slurm /var/lib/slurm/slurmd
chown munge: /run/munge
install -d -o gleaner -g gleaner -m 0750 /var/lib/gleaner /var/lib/gleaner/work
! with_slurm || install -o munge -m 0400 /etc/gleaner-cluster/munge.key /etc/munge/munge.key
install -d -o gleaner -g gleaner -m 0700 /run/gleaner-agent # as tmpfiles.d does on a real node

wait_for() { # wait_for SECONDS WHAT LOG COMMAND...
    local until=$((SECONDS + $1)) what=$2 log=$3
    shift 3
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $until ]; then
            echo "$what did not come up" >&2
            tail -n 20 "$log" >&2
            exit 1
        fi
        sleep 0.2
    done
}

if with_slurm; then setpriv --reuid munge --regid munge --init-groups munged --foreground --force & fi

# Containers of an earlier life of this node: their processes died with it. The engine must not find them "running".
# Each restore leaves a copy of the memory in containerd's TMPDIR: on disk it harms less than in memory.
rm -rf /var/lib/docker/gleaner-tmp
mkdir -p -m 0700 /var/lib/docker/gleaner-tmp
TMPDIR=/var/lib/docker/gleaner-tmp dockerd --bridge=none --iptables=false --ip-forward=false \
    --cgroup-parent "/gleaner-$(hostname)" >/var/log/dockerd.log 2>&1 &
wait_for 60 dockerd /var/log/dockerd.log docker version
docker ps -aq --filter label=org.gleaner.agent | xargs -r docker rm -f >/dev/null

# The node helper, for agents with the criu runtime and for user jobs. Neither its layers nor their folders can lie
# on the overlay that this container's root is.
rm -rf /var/lib/docker/gleaner-root/containers /var/lib/docker/gleaner-users
mkdir -p -m 0700 /var/lib/docker/gleaner-root /var/lib/gleaner-root
mkdir -p -m 0711 /var/lib/docker/gleaner-users /var/lib/gleaner-users
mount --bind /var/lib/docker/gleaner-root /var/lib/gleaner-root
mount --bind /var/lib/docker/gleaner-users /var/lib/gleaner-users
while :; do gleaner-helper || true; sleep 1; done >/var/log/gleaner-helper.log 2>&1 &

/usr/local/libexec/gleaner/watchdog &
if with_slurm; then
    wait_for 20 munged /dev/null munge -n
    # Where the head is set up, slurm.conf gets lines that slurmd reads, too.
    wait_for 300 "Gleaner's lines in slurm.conf" /etc/slurm/slurm.conf grep -q ^Epilog= /etc/slurm/slurm.conf
    # -b: processes of before are gone, as after a reboot, and slurmctld ends the jobs that it believes to run here.
    slurmd -D -b &
fi
echo "$(hostname): up"

trap 'trap - TERM; kill $(jobs -p) 2>/dev/null; wait; exit 0' TERM INT
wait -n || true
echo "$(hostname): a service ended; stopping" >&2
exit 1
