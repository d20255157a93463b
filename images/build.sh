#!/usr/bin/env bash
# Build the images, in the order in which they are needed: build.sh [--only base|pythia|pi|node|head|bench|slurm-lab|slurm-pyslurm]
#
# An image carries the digest of all that went into it as a label; the same digest again is not built again.
set -euo pipefail
. "$(dirname "$0")/../deploy/lib.sh"

base=debian:trixie-slim
tag=demo
work=$data_dir/build
images_dir=$repo_dir/images
python=$repo_dir/.venv/bin/python
log=$work/build.log

# Debian's own mirror as this machine's apt knows it (not its security archive, nor anybody else's packages).
mirror() {
    apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }'
}

build_base() {
    if docker image inspect $base >/dev/null 2>&1; then
        say "image base: present"
    elif timeout 60 docker pull -q $base >>"$log" 2>&1; then
        say "image base: pulled"
    else
        command -v mmdebstrap >/dev/null || die "no registry answers and mmdebstrap is missing; run deploy/setup.sh first"
        local from
        from=$(mirror)
        [ -n "$from" ] || die "no registry answers, and apt names no Debian mirror; see /etc/apt/sources.list"
        # Like the public image: without documentation and translations, and nothing that apt downloads is kept.
        mmdebstrap --quiet --variant=minbase --mode=root --include=ca-certificates \
            --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
            --customize-hook='echo "Dir::Cache::pkgcache \"\"; Dir::Cache::srcpkgcache \"\"; Binary::apt::APT::Keep-Downloaded-Packages \"0\";" \
                >"$1/etc/apt/apt.conf.d/docker-clean"; rm -rf "$1"/var/cache/apt/*' \
            trixie "$work/base.tar" "$from" >>"$log" 2>&1 || failed "the base image could not be made from $from"
        docker import "$work/base.tar" $base >/dev/null
        rm -f "$work/base.tar"
        say "image base: made from this machine's Debian mirror"
    fi
}

failed() { tail -n 25 "$log" >&2; die "$1; all of it in $log"; }

digest_of() { # digest_of DIR...: of names, contents and the right to execute, not of times
    find "$@" -type f ! -name '*.pyc' -printf '%p %m ' -exec sha256sum {} \; | sort | sha256sum | cut -c1-24
}

pip() {
    if [ ! -x "$python" ]; then
        python=$work/venv/bin/python
        [ -x "$python" ] || python3 -m venv "$work/venv"
    fi
    "$python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1
}

# wheels LOCKFILE TARGET: what the lock file names, for the images' Python (Debian 13's), fetched on this machine,
# because a container may lack the certificates that this machine trusts.
wheels() {
    local cache
    cache=$work/wheels/$(sha256sum <"$1" | cut -c1-24)
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$cache"
        pip download --no-deps --require-hashes --only-binary=:all: --python-version 3.13 --implementation cp \
            --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_17_$(uname -m)" \
            --platform "manylinux2014_$(uname -m)" --platform "manylinux_2_5_$(uname -m)" \
            -r "$1" -d "$cache" || failed "the wheels of ${1#"$repo_dir/"} could not be fetched"
        touch "$cache/.whole"
    fi
    mkdir -p "$2"
    cp "$cache"/*.whl "$2"
}

# source_of PACKAGE LOCKFILE TARGET: a package that is published as source only, and built in its image.
source_of() {
    local cache
    cache=$work/wheels/$(sha256sum <"$2" | cut -c1-24)
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$cache"
        pip download --no-deps --require-hashes --no-binary "$1" -r "$2" -d "$cache" ||
            failed "the source of $1 could not be fetched"
        touch "$cache/.whole"
    fi
    cp "$cache"/*.tar.gz "$3"
}

own_wheel() { # own_wheel TARGET: the project itself
    local cache
    cache=$work/own/$(cd "$repo_dir" && digest_of control agent lab pyproject.toml README.md LICENSE)
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$work/own"
        pip wheel --no-deps -w "$cache" "$repo_dir" || failed "the project's wheel could not be built"
        touch "$cache/.whole"
    fi
    mkdir -p "$1"
    cp "$cache"/*.whl "$1"
}

build() { # build NAME: from the context in $work/NAME
    local name=$1 image=gleaner/$1:$tag source known
    source=$(cd "$work/$name" && digest_of .)-$(docker image inspect --format '{{.Id}}' $base | cut -c8-20)
    known=$(docker image inspect --format '{{index .Config.Labels "org.gleaner.source"}}' "$image" 2>/dev/null || true)
    if [ "$source" = "$known" ]; then
        say "image $name: unchanged"
        return
    fi
    docker build --network=host --label "org.gleaner.source=$source" -t "$image" "$work/$name" >>"$log" 2>&1 ||
        failed "image $name could not be built"
    say "image $name: built ($((SECONDS - began_s)) s)"
}

context() { # context NAME: a fresh build context with the image's own files
    rm -rf "${work:?}/$1"
    cp -r "$images_dir/$1" "$work/$1"
}

build_one() {
    local began_s=$SECONDS
    case $1 in
        base) build_base ;;
        pythia) context pythia && wheels "$images_dir/pythia/requirements.lock" "$work/pythia/wheels" && build pythia ;;
        pi) context pi && build pi ;;
        node)
            context node
            wheels "$repo_dir/locks/agent.lock" "$work/node/wheels"
            own_wheel "$work/node/own"
            mkdir "$work/node/libexec"
            cp "$repo_dir"/deploy/{epilog.sh,install-node.sh,watchdog} "$work/node/libexec"
            build node
            ;;
        head)
            context head
            wheels "$repo_dir/locks/control.lock" "$work/head/wheels"
            own_wheel "$work/head/own"
            mkdir "$work/head/libexec"
            cp "$repo_dir/deploy/deadman" "$work/head/libexec"
            build head
            ;;
        bench) # only for make bench-checkpoint
            context bench
            docker image inspect --format '{{.Id}}' gleaner/node:$tag >"$work/bench/stands-on"
            build bench
            ;;
        slurm-lab) context slurm-lab && build slurm-lab ;; # only for glean simulate validate
        slurm-pyslurm) # only for the tests of the PySlurm backend
            context slurm-pyslurm
            cp -r "$repo_dir/deploy/pyslurm" "$work/slurm-pyslurm"
            source_of pyslurm "$repo_dir/deploy/pyslurm/requirements.lock" "$work/slurm-pyslurm/pyslurm"
            build slurm-pyslurm
            ;;
        *) die "no image named $1; there are base, pythia, pi, node, head, bench, slurm-lab and slurm-pyslurm" ;;
    esac
}

as_root
[ $# = 0 ] || { [ $# = 2 ] && [ "$1" = --only ]; } || die "usage: build.sh [--only NAME]"
docker version >/dev/null 2>&1 || die "our engine does not answer; run deploy/engine.sh start first"
mkdir -p "$work"
exec 9>"$work/lock"
flock 9 # two builds at once would empty each other's context
: >"$log"
if [ $# = 2 ]; then
    [ "$2" = base ] || build_one base
    [ "$2" != bench ] || build_one node
    build_one "$2"
else
    for name in base pythia pi node head; do build_one $name; done
fi
