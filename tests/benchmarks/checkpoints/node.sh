#!/bin/bash
# The benchmark's node: an engine of its own and the node helper, as on the nodes of the demo cluster.
set -eu
awk '$5 ~ "^/proc/" { print $5 }' /proc/self/mountinfo | sort -ru | while read -r mounted; do umount "$mounted" || true; done
install -d -o gleaner -g gleaner -m 0700 /data/ours
install -d -o gleaner -g gleaner -m 0700 /run/gleaner-agent
mkdir -p -m 0700 /var/lib/docker/gleaner-root /var/lib/gleaner-root /var/lib/docker/gleaner-tmp
mount --bind /var/lib/docker/gleaner-root /var/lib/gleaner-root
gleaner-helper >/var/log/gleaner-helper.log 2>&1 &
TMPDIR=/var/lib/docker/gleaner-tmp exec dockerd --bridge=none --iptables=false --ip-forward=false \
    --cgroup-parent /gleaner-bench >/var/log/dockerd.log 2>&1
