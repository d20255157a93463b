#!/bin/bash
# The benchmark's node: an engine of its own, and nothing else.
set -eu
awk '$5 ~ "^/proc/" { print $5 }' /proc/self/mountinfo | sort -ru | while read -r mounted; do umount "$mounted" || true; done
install -d -o gleaner -g gleaner -m 0700 /run/gleaner-agent /data/ours
mkdir -p /var/lib/docker/gleaner-tmp
TMPDIR=/var/lib/docker/gleaner-tmp exec dockerd --experimental --bridge=none --iptables=false --ip-forward=false \
    --cgroup-parent /gleaner-bench >/var/log/dockerd.log 2>&1
