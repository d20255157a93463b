#!/bin/sh
# munge, Slurm's controller and three nodes in one container, which must be called "lab". Ends when the controller ends.
set -eu

mkdir -p /run/munge /var/log/slurm /var/lib/slurm/slurmctld /var/lib/slurm/n1 /var/lib/slurm/n2 /var/lib/slurm/n3
chown munge: /run/munge
dd if=/dev/urandom of=/etc/munge/munge.key bs=128 count=1 status=none
chown munge: /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
setpriv --reuid munge --regid "$(id -g munge)" --init-groups munged --foreground --force &
until munge -n >/dev/null 2>&1; do sleep 0.1; done
slurmctld -D &
controller=$!
until scontrol ping 2>/dev/null | grep -q UP; do sleep 0.1; done
for node in n1 n2 n3; do slurmd -D -N $node & done
wait $controller
