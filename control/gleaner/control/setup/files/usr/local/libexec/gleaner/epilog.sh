#!/bin/sh
# Slurm's Epilog (slurm.conf: Epilog=; runs as root on the node at the end of every job): remove the containers that an
# agent left behind. Docker's containers are no children of the Slurm job and would live on.
#
# It touches nothing but containers of ours that carry the number of the job that has just ended, it takes 40 s at most,
# and it always succeeds: a failing Epilog would drain the node for the regular users.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

[ -n "${SLURM_JOB_ID:-}" ] || exit 0
[ ! -x /usr/local/sbin/gleaner-helper ] || timeout -k 1 38 gleaner-helper clear "$SLURM_JOB_ID" >/dev/null 2>&1 &
if command -v docker >/dev/null; then
    hangs=
    ours=$(timeout -k 1 8 docker ps -aq --no-trunc --filter label=org.gleaner.agent \
        --filter "label=org.gleaner.slurm-job=$SLURM_JOB_ID" 2>/dev/null) || hangs=yes
    # shellcheck disable=SC2086 # one word for each container
    [ -z "$ours" ] || timeout -k 1 18 docker rm -f $ours >/dev/null 2>&1 || hangs=yes
    # An engine that does not answer is no reason that a job's processes stay on a node that goes to somebody else.
    watchdog=/usr/local/libexec/gleaner/watchdog
    [ -z "$hangs" ] || [ ! -x $watchdog ] || timeout -k 1 9 $watchdog end-job "$SLURM_JOB_ID" >/dev/null 2>&1
fi
wait
exit 0
