# On the emulated machine, at each start: the next part of the transcript. What is printed goes to the console.
cd /srv/install
alice=$(getent passwd alice | cut -d: -f6)
way=$(cat way)
stage=$(cat stage 2>/dev/null || echo 1)
kept=$(printf '%s\n' /opt/gleaner "$alice" /srv/install /proc /sys /run /tmp /dev "$HOME/.cache" /var/cache /var/log /var/tmp \
    /var/lib/apt /var/lib/containerd /var/lib/docker /var/lib/dpkg /var/lib/munge /var/lib/mysql /var/lib/slurm \
    /var/lib/systemd |
    sed 's|.*|^&/|')

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
    sinfo --long --Node
    squeue
    as_alice glean show 1
    glean nodes
    journalctl --no-pager -b -p warning --since -15min | tail -40
    tail -n 15 /var/log/slurm/*.log /var/lib/gleaner/work/*.log 2>/dev/null
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
    local began_s=$SECONDS limit_s=$1
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt $((began_s + limit_s)) ] || { echo "not within its time: $*"; return 1; }
        sleep 3
    done
    echo "after $((SECONDS - began_s)) s: $*"
}
as_alice() { runuser -u alice -- env HOME="$alice" "$@"; }
state_is() { as_alice glean show 1 --json | grep -q "\"state\": *\"$1\""; }
has_printed() { as_alice glean logs 1 | grep -qx "$1"; }
is_usable() { sinfo --noheader --format=%T --nodes machine | grep -qx 'idle\|mixed\|allocated'; }
files() { find / -xdev \( -type f -o -type l -o -type d \) -print | grep -v "$kept" | sort; }

facts() {
    echo "systemd $(systemctl --version | head -1 | cut -d' ' -f2), $(uname -r), cgroups: $(stat -fc %T /sys/fs/cgroup)," \
        "$(slurmctld -V), $(criu --version | head -1), $(runc --version | head -1)"
}

start_slurm() {
    systemctl start munge mariadb
    mysql -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db;
        CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket; GRANT ALL ON slurm_acct_db.* TO slurm@localhost" >/dev/null
    systemctl enable --now slurmdbd
    until_is 300 sacctmgr --noheader show cluster
    sacctmgr --immediate add cluster one >/dev/null 2>&1 || true
    systemctl enable --now slurmctld slurmd
    until_is 300 is_usable
}

bring_image() { # the way of an admin on a node
    if [ "$way" = docker ]; then
        docker load -i pi.tar
    else
        gleaner-helper import gleaner/pi:demo pi.tar
    fi
}

# The program and its files have their own ends: two restores, and the second of them after the machine's new start.
was_restored() { # was_restored TIMES
    [ "$(as_alice glean show 1 --json | grep -o '"restored_from": *"' | wc -l)" -eq "$1" ]
}

if [ "$stage" = 1 ]; then
    told facts
    told start_slurm
    files >before
    cp /etc/slurm/slurm.conf slurm.conf.before
    told sh -ec 'glean setup control --host machine --yes >lines; cat lines'
    told glean setup node --from /etc/gleaner/join.json --runtime "$way" --yes
    [ "$way" = helper ] || told systemctl restart docker
    told sh -ec 'sed -n "/^# --- slurm.conf/,/^# --- end/p" lines >>/etc/slurm/slurm.conf; ! diff slurm.conf.before /etc/slurm/slurm.conf'
    told systemctl restart slurmctld slurmd
    until_is 300 is_usable
    until_is 300 glean status
    told sh -ec 'glean setup control --yes | tee again; grep -qx "control: all is as it should be" again'
    told sh -ec 'glean setup node --yes | tee again; grep -qx "node: all is as it should be" again'
    told bring_image
    told glean doctor control --patience 600
    told glean doctor node --patience 600
    told glean token create --role user --name alice --group physics --to "$alice/token"
    install -d -o alice -g alice -m 700 "$alice/.config/gleaner"
    install -o alice -g alice -m 600 "$alice/token" "$alice/.config/gleaner/token"
    told as_alice glean submit --image gleaner/pi:demo --memory-mib 256 -- --samples "$(cat twin/samples)" --seed 1 --out /job
    until_is 1500 has_printed "progress 20"
    told as_alice glean hold 1
    until_is 600 state_is Saved
    told as_alice glean release 1
    until_is 1500 has_printed "progress 40"
    told was_restored 1
    told as_alice glean show 1
    told glean agents
    echo "the machine is started anew, in the middle of the slice"
    echo 2 >stage
    sync
    systemctl reboot --force --no-block
    sleep 60
    exit
fi

told facts
until_is 600 is_usable
until_is 600 as_alice glean status
told systemctl is-active gleaner-control gleaner-watchdog
[ "$way" = docker ] || told systemctl is-active gleaner-helper
# Here slurmctld was started anew, too, and takes the dead agent's job for one that runs, until its time limit. A controller
# on a machine of its own sees that the node was started anew.
told scontrol update NodeName=machine State=DOWN Reason=restarted
told scontrol update NodeName=machine State=RESUME
until_is 300 is_usable
until_is 3600 state_is Complete
told as_alice glean show 1
told was_restored 2
told as_alice glean results 1 --to "$alice/results"
told sh -c 'cmp $(find "$0"/results -name pi.txt) twin/pi.txt && echo "the same as the uninterrupted run, byte for byte"' "$alice"
told glean doctor control --patience 600
told glean doctor node --patience 600
told scontrol update PartitionName=gleaner State=DOWN
told scancel -p gleaner
until_is 300 sh -c '! squeue --noheader --user gleaner | grep -q .'
told cp slurm.conf.before /etc/slurm/slurm.conf
told systemctl restart slurmctld slurmd
until_is 300 is_usable
told glean setup node --remove --purge --yes
told glean setup control --remove --purge --yes
told apt-get -q purge -y gleaner-control gleaner-node gleaner-client
files >after
echo "what is there since:"
comm -13 before after >since
cat since
ls -d /opt/gleaner 2>/dev/null || true
[ ! -s since ]
[ -z "$(getent passwd gleaner || getent group gleaner || true)" ]
[ ! -e /opt/gleaner ]
end "ALL IS AS IT SHOULD BE"
