#!/bin/bash
# The node of bench-boundary: an engine of its own with the shim, and the storage, also as one that is slow.
set -eu
awk '$5 ~ "^/proc/" { print $5 }' /proc/self/mountinfo | sort -ru | while read -r mounted; do umount "$mounted" || true; done
install -d -o gleaner -g gleaner -m 0700 /run/gleaner-agent
install -d -o gleaner -g gleaner -m 0700 /data/storage /data/work /data/slow-50 /data/slow-10
[ -e /dev/fuse ] || mknod -m 0666 /dev/fuse c 10 229
for mb_s in 50 10; do
    bindfs -o allow_other --write-rate="${mb_s}M" --read-rate="${mb_s}M" /data/storage /data/slow-$mb_s
done
mkdir -p -m 0700 /var/lib/docker/gleaner-tmp
TMPDIR=/var/lib/docker/gleaner-tmp exec dockerd --bridge=none --iptables=false --ip-forward=false \
    --cgroup-parent /gleaner-bench-boundary >/var/log/dockerd.log 2>&1
