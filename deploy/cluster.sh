#!/usr/bin/env bash
# The demo's cluster: one head and three nodes in containers of our own engine.
#
#   cluster.sh up                           start the parts that do not run, and wait until everything answers:
#                                           Slurm with all nodes, control, the Slurm admin service, each node's engine and helper
#   cluster.sh down                         remove everything with our label and the cluster's state, but keep images
#   cluster.sh status                       show the containers, and the nodes as Slurm sees them
#   cluster.sh exec [-u USER] [-i] WHERE COMMAND...   run a command on head, node1, node2 or node3
#   cluster.sh load-images [NODE...]        load missing images of the workloads into each node's engine and helper
#   cluster.sh thaw [NAME]                  thaw the control groups whose names begin with NAME (default: gleaner)
#
# GLEANER_UP_WITHIN_S (default 300): the time-out for each part, in seconds. A busy machine needs a minute for all.
# GLEANER_GRACE_S (default 60): the grace time of preempted agents when the head is set up. A real cluster has 120.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

nodes="node1 node2 node3"
workloads="gleaner/pythia:demo gleaner/pi:demo"
uid=4200        # of the service account, as in images/*/Dockerfile
slurm_uid=64030 # of the user slurm, the same on every Debian
export GLEANER_CLUSTER_DIR=$cluster_dir

in_container() { docker exec "$@" </dev/null; }

prepare_folders() {
    mkdir -p "$cluster_dir"
    chmod 711 "$cluster_dir"
    local node
    install -d -m 0755 "$cluster_dir/storage"
    install -d -m 1777 "$cluster_dir/users" # the users' folder, which is the same on all machines
    for node in $nodes; do install -d -m 0750 -o $uid -g $uid "$cluster_dir/$node"; done
    for node in $nodes; do mkdir -p "$cluster_dir/$node-docker"; done
    install -d -m 0755 "$cluster_dir"/{slurm,head,etc-head,etc-node,etc-node/tls}
    install -d -m 0700 "$cluster_dir/secret"
    [ -s "$cluster_dir/secret/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$cluster_dir/secret/munge.key")
    [ -s "$cluster_dir/etc-node/user-jobs.key" ] || (umask 077 && head -c 64 /dev/urandom >"$cluster_dir/etc-node/user-jobs.key")
}

# The demo site's own settings. `glean setup control` makes all others on the head (images/head/entry.sh).
prepare_settings() {
    local from=$repo_dir/deploy
    [ -s "$cluster_dir/slurm/slurm.conf" ] || cp "$from/slurm/slurm.conf" "$cluster_dir/slurm/"
    cp "$from"/slurm/{machine,cgroup,entitlements}.conf "$from/slurm/job_submit.lua" "$cluster_dir/slurm/"
    install -m 0600 -o $slurm_uid "$from/slurm/slurmdbd.conf" "$cluster_dir/slurm/" # slurmdbd refuses it if others can read it
    install -m 0644 "$from"/settings/{agent.toml,privileged.json} "$cluster_dir/etc-node/"
    install -m 0644 "$from"/settings/{demo.toml,slurm-admin.conf} "$cluster_dir/etc-head/"
}

# The agents trust control's certificate because of the authority that setup has created on the head.
give_authority() { install -m 0644 "$cluster_dir/etc-head/tls/ca.pem" "$cluster_dir/etc-node/tls/"; }

# Another engine may have made the machine drop packets that bridges forward. This rule allows them for our bridge only.
bridge_rule() {
    case $1 in
        add) bridge_rule_present || iptables -I FORWARD -i gleaner0 -o gleaner0 -j ACCEPT 2>/dev/null || true ;;
        remove) while bridge_rule_present; do iptables -D FORWARD -i gleaner0 -o gleaner0 -j ACCEPT; done ;;
    esac
}
bridge_rule_present() { iptables -C FORWARD -i gleaner0 -o gleaner0 -j ACCEPT 2>/dev/null; }

all_up() { [ "$(in_container head sinfo -h -N -p regular -o '%N %T' | grep -cE ' (idle|mixed|allocated|planned|completing)$')" = 3 ]; }

# A container is dead if two checks show that it exists and has exited. A check that fails or is slow does not count.
exited() { docker ps -aq --filter "label=$cluster_label" --filter label=com.docker.compose.project --filter status=exited; }
one_is_dead() {
    local before
    before=$(exited) && [ -n "$before" ] && sleep 1 && [ "$(exited)" = "$before" ]
}

control_leads() {
    in_container head /opt/gleaner/bin/python -c '
import json, ssl, urllib.request
trust = ssl.create_default_context(cafile="/etc/gleaner/tls/ca.pem")
with urllib.request.urlopen("https://head:8642/health", timeout=10, context=trust) as answer:
    raise SystemExit(not json.load(answer)["leader"])'
}
slurm_admin_listens() { in_container head test -S /run/gleaner/slurm-admin.sock; }
engine_answers() { in_container "$1" docker version; }
helper_answers() { # with the same request as from an agent
    in_container -u $uid "$1" /opt/gleaner/bin/python -c '
from gleaner.agent.runtime.helper_client import HelperClient
HelperClient("/run/gleaner-helper.sock").ask("list")'
}

# await COMPLAINT COMMAND...: wait until the command succeeds. End this script if it does not, or if a container is dead.
await() {
    local complaint=$1 answered="" dead="" began_s=$SECONDS
    shift
    wait_for "${GLEANER_UP_WITHIN_S:-300}" or_dead "$@" || true
    [ -z "$answered" ] || return 0
    complaint="$complaint, after $((SECONDS - began_s)) s"
    status >&2 || true
    logs_of_dead >&2
    die "${dead:+a container of the cluster has ended: }$complaint"
}
or_dead() { if "$@"; then answered=yes; else one_is_dead && dead=yes; fi; }

up() {
    local image node missing=
    docker version >/dev/null 2>&1 || die "our engine does not answer; run deploy/engine.sh start first"
    for image in gleaner/head:demo gleaner/node:demo $workloads; do
        docker image inspect "$image" >/dev/null 2>&1 || missing="$missing $image"
    done
    [ -z "$missing" ] || die "these images are missing:$missing; run images/build.sh first"
    prepare_folders
    prepare_settings
    bridge_rule add
    compose up -d >"$cluster_dir/compose.log" 2>&1 || { tail -n 20 "$cluster_dir/compose.log" >&2; die "compose failed"; }
    await "Slurm does not have all nodes" all_up
    # Control must be ready for its first user, with its tables and as the leader, before tokens and jobs can be created.
    await "control on the head does not answer, or does not lead; see /var/log/gleaner/control.log there" control_leads
    await "the Slurm admin service on the head does not listen; see /var/log/gleaner/slurm-admin.log there" slurm_admin_listens
    give_authority
    for node in $nodes; do
        await "the Docker Engine of $node does not answer; see /var/log/dockerd.log there" engine_answers "$node"
        await "the node helper of $node does not answer; see /var/log/gleaner-helper.log there" helper_answers "$node"
    done
    load_images
    say "cluster: up ($(in_container head sinfo -h -p regular -o '%D nodes %T' | paste -sd,))"
}

logs_of_dead() {
    local name
    for name in head $nodes; do
        [ "$(docker inspect --format '{{.State.Running}}' "$name" 2>/dev/null)" = true ] || docker logs --tail 15 "$name" 2>&1 | sed "s/^/$name: /"
    done
}

load_images() {
    local node pid pids=() status=0
    for node in $nodes; do load_images_on "$node" & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    return $status
}
load_images_on() {
    local node=$1 image
    for image in $workloads; do
        if [ "$(in_container "$node" docker image inspect --format '{{.Id}}' "$image" 2>/dev/null)" != \
            "$(docker image inspect --format '{{.Id}}' "$image")" ]; then
            docker save "$image" | docker exec -i "$node" docker load -q >/dev/null ||
                die "$image could not be loaded on $node"
            say "cluster: loaded $image on $node"
        fi
        in_container "$node" sh -c "$give_to_helper" sh "$image" || die "$image could not be given to the helper on $node"
    done
}
# For user jobs. The helper imports an image from one plain file.
give_to_helper='grep -qs "/$1\": \"$(docker image inspect --format {{.Id}} "$1")\"" /var/lib/gleaner-root/images/names.json && exit
    file=$(mktemp -p /var/lib/docker) && docker save -o "$file" "$1" && gleaner-helper import "$1" "$file" >/dev/null; done=$?
    rm -f "$file"; exit $done'

labelled() { docker "$1" ls -q --filter "label=$cluster_label" "${@:2}"; }

# The kernel does not end a frozen process, and a node ends only after its processes.
thaw() { # thaw NAME: thaw the control groups whose names begin with NAME
    find /sys/fs/cgroup -name freezer.state -path "*/$1*" -exec sh -c 'echo THAWED >"$1"' sh {} \; 2>/dev/null || true
    find /sys/fs/cgroup -name cgroup.freeze -path "*/$1*" -exec sh -c 'echo 0 >"$1"' sh {} \; 2>/dev/null || true
}

down() {
    command -v dockerd >/dev/null || { say "cluster: nothing to remove, there is no Docker Engine here"; return; }
    docker version >/dev/null 2>&1 || "$repo_dir/deploy/engine.sh" start >/dev/null
    thaw gleaner
    labelled container -a | xargs -r "$docker_client" rm -f -v >/dev/null
    # Also remove containers that lab/validate.py may have left.
    docker container ls -a -q --filter label=org.gleaner.lab | xargs -r "$docker_client" rm -f -v >/dev/null
    labelled network | xargs -r "$docker_client" network rm >/dev/null
    labelled volume | xargs -r "$docker_client" volume rm >/dev/null
    bridge_rule remove
    # The nodes' Docker data is kept, so that images need not be loaded again.
    rm -rf "${cluster_dir:?}"/{storage,users,head,node1,node2,node3,slurm,etc-head,etc-node,secret}
    find /sys/fs/cgroup -depth -type d \( -path '*/gleaner-node[123]*' -o -path '*/gleaner-test*' -o -path '*/gleaner/*' \) \
        -exec rmdir {} + 2>/dev/null || true # only the unused ones can be removed
    say "cluster: down"
}

status() {
    docker ps -a --filter "label=$cluster_label" --format 'table {{.Names}}\t{{.Status}}'
    in_container head sinfo || true
}

run_in() {
    local options=()
    while :; do
        case "${1:-}" in
            -u) options+=(-u "$2"); shift 2 ;;
            -i) options+=(-i); shift ;;
            *) break ;;
        esac
    done
    [ $# -ge 2 ] || die "usage: cluster.sh exec [-u USER] [-i] WHERE COMMAND..."
    exec "$docker_client" exec "${options[@]}" "$@" # exec, so that ending this script also ends the client
}

as_root
case "${1:-}" in
    up) up ;;
    down) down ;;
    status) status ;;
    exec) shift; run_in "$@" ;;
    thaw) thaw "${2:-gleaner}" ;;
    load-images)
        shift
        [ $# = 0 ] || nodes=$*
        for node in $nodes; do
            wait_for 120 helper_answers "$node" || die "the node helper of $node does not answer"
        done
        load_images
        ;;
    *) die "usage: cluster.sh up | down | status | exec [-u USER] [-i] WHERE COMMAND... | load-images [NODE...] | thaw [NAME]" ;;
esac
