# On the emulated machine, at each start: the next part of the transcript. What is printed goes to the console.
cd /srv/install
alice=$(getent passwd alice | cut -d: -f6)
way=$(cat way)
stage=$(cat stage 2>/dev/null || echo 1)

end() { # end LINE: the machine is switched off
    echo "$*"
    sync
    systemctl poweroff --force --no-block
    sleep 60
    exit
}
failed() {
    trap - ERR
    systemctl --no-pager --failed
    journalctl --no-pager -b -p warning --since -15min | tail -40
    tail -n 15 /var/log/slurm/*.log 2>/dev/null
    end "FAILED at stage $stage, line $1"
}
trap 'failed $LINENO' ERR
set -E

told() { # told COMMAND...: shown, and carried out; a failure ends the transcript
    printf '\n$ %s\n' "$*"
    local began_s=$SECONDS
    "$@"
    echo "(${SECONDS} s since the start, of which $((SECONDS - began_s)) s here)"
}
until_is() { # until_is SECONDS COMMAND...
    local until_s=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until_s" ] || { echo "not within its time: $*"; return 1; }
        sleep 3
    done
}
as_alice() { runuser -u alice -- env HOME="$alice" "$@"; }
state_is() { as_alice glean show 1 --json | grep -q "\"state\": *\"$1\""; }

facts() {
    echo "systemd $(systemctl --version | head -1 | cut -d' ' -f2), $(uname -r), cgroups: $(stat -fc %T /sys/fs/cgroup), $(slurmctld -V), $(criu --version | head -1)"
}

start_slurm() {
    systemctl start munge mariadb
    mysql -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db;
        CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON slurm_acct_db.* TO slurm@localhost" >/dev/null
    systemctl enable --now slurmdbd
    until_is 300 sacctmgr --noheader show cluster
    sacctmgr --immediate add cluster one >/dev/null 2>&1 || true
    systemctl enable --now slurmctld slurmd
    until_is 300 sh -c 'sinfo --noheader --format=%T --nodes machine | grep -q "idle\|mixed"'
}

if [ "$stage" = 1 ]; then
    told facts
    told start_slurm
    find / -xdev \( -type f -o -type l \) -not -path '/proc/*' -not -path '/sys/*' -not -path '/run/*' -not -path '/var/lib/mysql/*' \
        -not -path '/var/log/*' -not -path '/var/lib/slurm/*' -not -path '/srv/install/*' -not -path '/tmp/*' | sort >/srv/install/before
    cp /etc/slurm/slurm.conf /srv/install/slurm.conf.before
    told glean setup control --host machine --yes --restart
    told glean setup node --from /etc/gleaner/join.json --runtime "$way" --yes --restart
    told systemctl restart slurmctld slurmd
    until_is 300 sh -c 'sinfo --noheader --format=%T --nodes machine | grep -q "idle\|mixed"'
    if [ "$way" = docker ]; then told docker load -i pi.tar; docker tag gleaner/pi:demo gleaner/pi; else told gleaner-helper import gleaner/pi pi.tar; fi
    told glean doctor control || true
    told glean doctor node || true
    told glean token create --role user --name alice --group physics --to $alice/token
    install -d -o alice -g alice -m 700 $alice/.config/gleaner
    install -o alice -g alice -m 600 $alice/token $alice/.config/gleaner/token
    told as_alice glean submit --image gleaner/pi --memory-mib 256 -- --samples 20000000 --seed 1 --out /job
    until_is 900 state_is Running
    sleep 60 # of computing
    told as_alice glean hold 1
    until_is 900 state_is Saved
    told as_alice glean release 1
    until_is 1200 state_is Running
    told as_alice glean show 1
    sleep 30 # of the second slice
    told glean agents
    echo "the machine is started anew, in the middle of the slice"
    echo 2 >stage
    sync
    systemctl reboot --force --no-block
    sleep 60
    exit
fi

told facts
until_is 600 sh -c 'sinfo --noheader --format=%T --nodes machine | grep -q "idle\|mixed\|alloc"'
until_is 600 as_alice glean status
told systemctl is-active gleaner-control gleaner-watchdog
until_is 3600 state_is Complete
told as_alice glean show 1
told as_alice glean results 1 --to $alice/results
told sh -c 'cmp $(find "$0"/results -name pi.txt) /srv/install/twin/pi.txt && echo "the same as the uninterrupted run, byte for byte"' "$alice"
told glean doctor control
told glean doctor node
scontrol update PartitionName=gleaner State=DOWN
scancel --user gleaner
told glean setup node --remove --yes --restart
told glean setup control --remove --purge --yes --restart
told apt-get -q purge -y gleaner-control gleaner-node gleaner-client
find / -xdev \( -type f -o -type l \) -not -path '/proc/*' -not -path '/sys/*' -not -path '/run/*' -not -path '/var/lib/mysql/*' \
    -not -path '/var/log/*' -not -path '/var/lib/slurm/*' -not -path '/srv/install/*' -not -path '/tmp/*' | sort >/srv/install/after
echo "files that are there since:"
comm -13 /srv/install/before /srv/install/after | grep -v "^/opt/gleaner\|^$alice\|^/var/lib/\(docker\|containerd\|systemd\|dpkg\|apt\)\|^/var/cache" || true
told diff /srv/install/slurm.conf.before /etc/slurm/slurm.conf
end "ALL IS AS IT SHOULD BE"
