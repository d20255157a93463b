#!/usr/bin/env bash
# Build the images, each after those that it stands on: build.sh [--suite SUITE] [--only NAME]
#
#   debian:trixie-slim (base)
#     python                        Python
#       pythia, pi                  the workloads
#       slurm-base                  what head and node have in common
#         head, node                the project's own code is their last layer
#           bench                   on node; only with --only
#     slurm-lab, slurm-pyslurm      only with --only
#
# Another suite of Debian, `testing` for example, gives images of that tag: for the tests, a node alone.
#
# An image carries the digest of all that went into it as a label; the same digest again is not built again.
set -euo pipefail
. "$(dirname "$0")/../deploy/lib.sh"
. "$repo_dir/deploy/python-tree.sh"

suite=trixie tag=demo
if [ "${1:-}" = --suite ]; then
    suite=${2:?} tag=$2
    shift 2
fi
base=debian:$suite-slim
images_dir=$repo_dir/images
log=$work/build.log
umask 022 # modes go into the images

build_base() {
    if docker image inspect "$base" >/dev/null 2>&1; then
        say "image base: present"
    elif timeout 60 docker pull -q "$base" >>"$log" 2>&1; then
        say "image base: pulled"
    else
        command -v mmdebstrap >/dev/null || die "no registry answers and mmdebstrap is missing; run deploy/setup.sh first"
        local from
        from=$(mirror)
        [ -n "$from" ] || die "no registry answers, and apt names no Debian mirror; see /etc/apt/sources.list"
        # Like the public image: without documentation and translations, dpkg does not wait for the disk, and nothing that
        # apt downloads is kept. Certificates only where apt needs them. A mirror may stand still for a while.
        local include=()
        [ "${from#https:}" = "$from" ] || include=(--include=ca-certificates)
        mmdebstrap --quiet --variant=minbase --mode=root "${include[@]}" --dpkgopt=force-unsafe-io \
            --aptopt='Acquire::Check-Valid-Until "false"' \
            --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
            --customize-hook='echo "Dir::Cache::pkgcache \"\"; Dir::Cache::srcpkgcache \"\"; Binary::apt::APT::Keep-Downloaded-Packages \"0\"; Acquire::Languages \"none\";" \
                >"$1/etc/apt/apt.conf.d/docker-clean"; rm -rf "$1"/var/cache/apt/*' \
            "$suite" "$work/base.tar" "$from" >>"$log" 2>&1 || failed "the base image could not be made from $from"
        docker import "$work/base.tar" "$base" >/dev/null
        rm -f "$work/base.tar"
        say "image base: made from this machine's Debian mirror"
    fi
}

# source_of PACKAGE LOCKFILE TARGET: a package that is published as source only, and built in its image.
source_of() {
    local cache
    cache=$work/sources/$(sha256sum <"$2" | cut -c1-24)
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$cache"
        tool pip download --no-deps --require-hashes --no-binary "$1" -r "$2" -d "$cache" ||
            failed "the source of $1 could not be fetched"
        touch "$cache/.whole"
    fi
    cp "$cache"/*.tar.gz "$3"
}

build() { # build NAME PARENT: from the context in $work/NAME
    local name=$1 image=gleaner/$1:$tag source known
    source=$(cd "$work/$name" && digest_of .)-$(docker image inspect --format '{{.Id}}' "$2" | cut -c8-20)
    known=$(docker image inspect --format '{{index .Config.Labels "org.gleaner.source"}}' "$image" 2>/dev/null || true)
    if [ "$source" = "$known" ]; then
        say "image $name: unchanged"
        return
    fi
    docker build --force-rm --network=host --build-arg "SUITE=$suite" --build-arg "TAG=$tag" --label "org.gleaner.source=$source" -t "$image" "$work/$name" >>"$log" 2>&1 ||
        failed "image $name could not be built"
    say "image $name: built ($((SECONDS - began_s)) s)"
}

context() { # context NAME: a fresh build context with the image's own files
    rm -rf "${work:?}/$1"
    cp -r "$images_dir/$1" "$work/$1"
}

build_one() {
    local began_s=$SECONDS into=$work/$1
    log=$work/$1.log
    : >"$log"
    case $1 in
        base) build_base ;;
        python)
            context python && build python "$base"
            [ $tag = demo ] || use_python "$(docker run --rm --network=none "gleaner/python:$tag" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
            ;;
        pythia)
            context pythia
            mv "$into/demo.Dockerfile" "$into/Dockerfile"
            packages "$into/requirements.lock" "$into/unpacked"
            # The generator's library, and its data but for the manual.
            mkdir -p "$into/pythia/lib"
            mv "$into/unpacked/$site_packages"/*.so "$into/pythia/lib"
            mv "$into/unpacked/$site_packages/share/Pythia8" "$into/pythia/share"
            rm -rf "$into/unpacked" "$into/pythia/share/htmldoc"
            build pythia "gleaner/python:$tag"
            ;;
        pi) context pi && build pi "gleaner/python:$tag" ;;
        workloads)
            build_one pythia
            build_one pi
            ;;
        slurm-base)
            context slurm-base
            locked both >"$work/both.lock"
            packages "$work/both.lock" "$into/packages"
            build slurm-base "gleaner/python:$tag"
            ;;
        node)
            context node
            locked agent >"$work/agent.lock"
            packages "$work/agent.lock" "$into/packages"
            cp -al "$(own)" "$into/own"
            mv "$into/sbin" "$into/own/usr/local"
            mv "$into/entry.sh" "$into/own"
            build node "gleaner/slurm-base:$tag"
            ;;
        head)
            context head
            locked control >"$work/control.lock"
            packages "$work/control.lock" "$into/packages"
            cp -al "$(own)" "$into/own"
            ln -s /opt/gleaner/bin/gleaner-slurm-admin "$into/own/usr/local/bin/"
            cp "$repo_dir/deploy/deadman" "$into/own/usr/local/libexec/gleaner"
            mv "$into/entry.sh" "$into/accounts.sh" "$into/own"
            build head "gleaner/slurm-base:$tag"
            ;;
        bench) context bench && build bench "gleaner/node:$tag" ;;   # only for make bench-checkpoint
        slurm-lab) context slurm-lab && build slurm-lab "$base" ;;   # only for lab/validate.py
        slurm-pyslurm) # only for the tests of the PySlurm backend
            context slurm-pyslurm
            cp -r "$repo_dir/deploy/pyslurm" "$into"
            source_of pyslurm "$repo_dir/deploy/pyslurm/requirements.lock" "$into/pyslurm"
            build slurm-pyslurm "$base"
            ;;
    esac
}

as_root
case ${1:-}${2+ $2}${3+ more} in
    "") wanted=(base python) ;;
    "--only base") wanted=(base) ;;
    "--only python") wanted=(base python) ;;
    "--only pythia" | "--only pi" | "--only slurm-base") wanted=(base python "$2") ;;
    "--only node" | "--only head") wanted=(base python slurm-base "$2") ;;
    "--only bench") wanted=(base python slurm-base node bench) ;;
    "--only slurm-lab" | "--only slurm-pyslurm") wanted=(base "$2") ;;
    *) die "usage: build.sh [--suite SUITE] [--only base|python|pythia|pi|slurm-base|node|head|bench|slurm-lab|slurm-pyslurm]" ;;
esac
docker version >/dev/null 2>&1 || die "our engine does not answer; run deploy/engine.sh start first"
mkdir -p "$work"
exec 9>"$work/lock"
flock 9 # two builds at once would empty each other's context
# side_by_side NAME...: images that do not need one another; two at once keep two cores and the network busy.
side_by_side() {
    local name pid pids=() status=0
    for name in "$@"; do build_one "$name" & pids+=($!); done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    return $status
}

for name in "${wanted[@]}"; do build_one "$name"; done
if [ $# = 0 ]; then
    side_by_side workloads slurm-base
    own >/dev/null # both of the others take the project's wheel
    side_by_side node head
fi
