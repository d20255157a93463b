#!/bin/bash
# What the head runs: munge, the accounting database, Slurm's controller, and Gleaner. Ends when one of them ends.
# /run is a fresh tmpfs at each start, so no pid file or socket of an earlier life is in the way.
set -eu

mkdir -p /run/munge /run/slurm /run/mysqld /var/log/slurm /var/lib/slurm/slurmctld
chown munge: /run/munge
chown slurm: /run/slurm /var/log/slurm /var/lib/slurm /var/lib/slurm/slurmctld
chown mysql: /run/mysqld

install -o munge -m 0400 /etc/gleaner-cluster/munge.key /etc/munge/munge.key

as() { # as USER COMMAND...
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups "$@"
}

wait_for() { # wait_for SECONDS WHAT COMMAND...
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $until ]; then
            echo "$what did not come up" >&2
            tail -n 20 /var/log/slurm/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

as munge munged --foreground --force &
mariadbd --user=mysql --skip-networking --skip-name-resolve --innodb-buffer-pool-size=64M \
    --performance-schema=OFF >/var/log/slurm/mariadb.log 2>&1 &
wait_for 60 MariaDB mariadb -e 'SELECT 1'
mariadb -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db; CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
    GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
wait_for 20 munged munge -n
as slurm slurmdbd -D &
wait_for 60 slurmdbd sacctmgr -n list cluster
[ -n "$(sacctmgr -nP list user alice)" ] || /accounts.sh >/var/log/slurm/accounts.log
start_slurmctld() {
    as slurm slurmctld -D &
    slurmctld=$!
    wait_for 60 slurmctld scontrol ping
}
start_slurmctld
install -d -o gleaner -g gleaner -m 0750 /var/log/gleaner

# As an admin does it (docs/admin/install.md). No systemd starts control here, which setup tells in a remark.
token=$HOME/.config/gleaner/token
set_up() {
    local address log=/var/log/gleaner/setup.log conf=/etc/slurm/slurm.conf
    address=$(hostname --ip-address)
    glean setup control --host head --host "${address%% *}" --storage /srv/gleaner --yes >$log 2>$log.err || {
        cat $log.err >&2
        exit 1
    }
    # What an admin pastes, and what the demo's site has by hand. Whole, because the nodes wait for it.
    grep -q ^Epilog= $conf || {
        sed -n '/^# --- slurm.conf/,/^# --- end/p' $log | sed "s/GraceTime=120/GraceTime=$GLEANER_GRACE_S/" |
            cat $conf - /etc/slurm/entitlements.conf >$conf.new
        mv $conf.new $conf
    }
    # The demo's own settings: short rounds.
    grep -qxF '[rounds]' /etc/gleaner/gleaner.toml || cat /etc/gleaner/demo.toml >>/etc/gleaner/gleaner.toml
    # By hand, where Gleaner enforces entitlements or drains nodes (docs/admin/entitlements.md). This account submits nothing.
    sacctmgr -i add user gleaner-slurm-admin Account=gleaner AdminLevel=Administrator
    sacctmgr -i modify user gleaner-slurm-admin set MaxSubmitJobs=0
    pkill -x slurmctld
    wait "$slurmctld" || true
    start_slurmctld
}
[ -s $token ] || set_up

# What a service manager does on a real head (deploy/systemd): start control, and start it again whenever it ends.
keep_control() {
    until as gleaner glean control migrate >>/var/log/gleaner/control.log 2>&1; do sleep 2; done
    while :; do
        as gleaner glean control run >>/var/log/gleaner/control.log 2>&1 || true
        sleep 1
    done
}
keep_control &
keep_slurm_admin() {
    install -d -o gleaner-slurm-admin -g gleaner-slurm-admin -m 0755 /run/gleaner
    while :; do
        as gleaner-slurm-admin gleaner-slurm-admin >>/var/log/gleaner/slurm-admin.log 2>&1 || true
        sleep 1
    done
}
keep_slurm_admin &
# And what its timer does there: independent of all that is Gleaner's, and it lets go what a dead Gleaner holds.
watch_for_death() {
    while sleep 15; do
        as gleaner-slurm-admin timeout 120 /usr/local/libexec/gleaner/deadman >>/var/log/gleaner/deadman.log 2>&1 || true
    done
}
watch_for_death &
echo "head: up"

trap 'trap - TERM; kill $(jobs -p) 2>/dev/null; exit 0' TERM INT
wait -n || true
echo "head: a service ended; stopping" >&2
exit 1
