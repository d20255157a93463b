# Shared by images/build.sh and packaging/build.sh, which source it after lib.sh: builds the Python tree that becomes
# /opt/gleaner, on this machine for the target's Python. Sets $work, $python_version and $site_packages. The caller sets
# $log.
# shellcheck shell=bash

work=$data_dir/build
use_python() { # use_python VERSION: set the target's Python version
    python_version=$1
    site_packages=lib/python$1/site-packages
}
use_python 3.13 # Debian 13's

failed() { tail -n 25 "$log" >&2; die "$1; all of it in $log"; }

digest_of() { # digest_of DIR...: the digest of names, contents and modes, but not of times
    {
        find "$@" -type f ! -name '*.pyc' -printf '%p %m\n' -o -type l -printf '%p %l\n'
        find "$@" -type f ! -name '*.pyc' -exec sha256sum {} +
    } | sort | sha256sum | cut -c1-24
}

# tool NAME ARGUMENT...: run pip or uv from the development environment or, without one, from a small one made here.
tool() {
    local bin=$repo_dir/.venv/bin name=$1
    shift
    if [ ! -x "$bin/uv" ]; then
        bin=$work/venv/bin
        if [ ! -x "$bin/uv" ]; then
            python3 -m venv "$work/venv"
            sed -n '/^uv==/,/[^\\]$/p' "$repo_dir/locks/dev.lock" >"$work/uv.lock"
            "$bin/pip" --disable-pip-version-check install --require-hashes -r "$work/uv.lock" >>"$log" 2>&1
        fi
    fi
    case $name in
        pip) "$bin/python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1 ;;
        uv) "$bin/uv" "$@" >>"$log" 2>&1 ;;
    esac
}

# unpack TARGET REQUIREMENT...: install wheels for the images' Python into TARGET, which becomes /opt/gleaner there. This
# runs on this machine, because a container may lack the certificates that this machine trusts. uv is about ten times
# faster than pip, but does not read pip's settings, in which a site may name its index. In that case, pip is used.
unpack() {
    local target=$1 site=$1/$site_packages machine platform=()
    machine=$(uname -m)
    shift
    for platform_tag in manylinux_2_28 manylinux_2_17 manylinux2014 manylinux_2_5; do
        platform+=(--platform "${platform_tag}_$machine")
    done
    tool uv pip install --link-mode copy --target "$site" --no-deps --only-binary :all: --python-version $python_version \
        --python-platform "$machine-manylinux_2_28" "$@" || {
        rm -rf "$site"
        tool pip install --no-compile --target "$site" --no-deps --only-binary=:all: --python-version $python_version \
            --implementation cp "${platform[@]}" "$@"
    } || return
    rm -f "$site/.lock"
    if [ -d "$site/bin" ]; then
        mv "$site/bin" "$target/bin"
        sed -i '1s|^#!.*|#!/opt/gleaner/bin/python|' "$target"/bin/*
    fi
}

# packages LOCKFILE TARGET: copy the packages in the lock file, which are unpacked once and kept.
packages() {
    local cache
    cache=$work/packages/$(sha256sum <"$1" | cut -c1-24)-$python_version
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$cache"
        unpack "$cache/packages" --require-hashes -r "$1" || failed "the packages of ${1##*/} could not be fetched"
        touch "$cache/.whole"
    fi
    cp -al "$cache/packages" "$2"
}

# locked WHICH: the lines that are in the lock files of both agent and control, or only in one of them.
locked() {
    case $1 in both) set -- -12 ;; agent) set -- -23 ;; control) set -- -13 ;; esac
    comm "$1" <(one_line_each agent) <(one_line_each control)
}
one_line_each() { sed -z 's/ *\\\n */ /g' "$repo_dir/locks/$1.lock" | sort; }

# own: make the project's files as they are below / in an image, unless they are kept from before, and print the path.
own() {
    local cache
    cache=$work/own-$python_version/$(cd "$repo_dir" && digest_of control agent pyproject.toml hatch_build.py README.md LICENSE)
    if [ ! -e "$cache/.whole" ]; then
        rm -rf "$work/own-$python_version"
        { tool uv build --wheel -o "$cache" "$repo_dir" || tool pip wheel --no-deps -w "$cache" "$repo_dir"; } &&
            unpack "$cache/root/opt/gleaner" "$cache"/*.whl || failed "the project's wheel could not be made"
        mkdir -p "$cache/root/usr/local/bin"
        ln -s /opt/gleaner/bin/glean /opt/gleaner/bin/glean-agent "$cache/root/usr/local/bin/"
        mkdir -p "$cache/root/usr/local/libexec/gleaner"
        touch "$cache/.whole"
    fi
    printf '%s\n' "$cache/root"
}
