#!/usr/bin/env bash
# Build the Debian packages and the wheel, for Debian 13 and its Python 3.13: build.sh [FOLDER]. They come to FOLDER, dist/ unless
# named, with a list of the Python packages in each part (an SBOM in CycloneDX's format).
#
#   gleaner-client     /opt/gleaner: the environment of Python with `glean`, completion, man pages
#   gleaner-node       what an agent needs beside that
#   gleaner-control    what control needs beside that
#
# The files of the two others lie in the client's environment, so all are of one version. `glean setup` does the rest.
set -euo pipefail
. "$(dirname "$0")/../deploy/lib.sh"
. "$repo_dir/deploy/python-tree.sh"

as_root
[ $# -le 1 ] || die "usage: build.sh [FOLDER]"
command -v dpkg-deb >/dev/null || die "dpkg-deb is missing: build the packages on a Debian machine"
out=${1:-$repo_dir/dist}
log=$work/packaging.log
python=$repo_dir/.venv/bin/python
[ -x "$python" ] || die "there is no environment for development: run make venv first"
mkdir -p "$work" "$out"
: >"$log"
exec 9>"$work/lock"
flock 9
umask 022
place=$work/packaging
rm -rf "$place"
mkdir -p "$place"
version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
architecture=$(dpkg --print-architecture)
next_python=${python_version%.*}.$((${python_version#*.} + 1))

# package NAME DEPENDS DESCRIPTION: what lies in $place/NAME becomes a package. Python is compiled where it is installed.
package() {
    local root=$place/$1 library=/opt/gleaner/$site_packages
    mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
    cp "$repo_dir/LICENSE" "$root/usr/share/doc/$1/copyright"
    cat >"$root/DEBIAN/control" <<EOF
Package: $1
Version: $version
Architecture: $architecture
Maintainer: Gleaner's authors <gleaner@localhost>
Section: admin
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: $2
Description: $3
 Gleaner runs long single-node jobs in the idle gaps of a Slurm cluster, saves
 them before a gap closes, and continues them in the next gap. The command
 glean setup completes the installation.
EOF
    cat >"$root/DEBIAN/postinst" <<EOF
#!/bin/sh
set -e
[ "\$1" != configure ] || /usr/bin/python3 -m compileall -q -x /tests/ $library
EOF
    # Of several packages in one environment each takes what was compiled; the next start of a program would make it anew.
    cat >"$root/DEBIAN/prerm" <<EOF
#!/bin/sh
set -e
find $library -depth -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true
EOF
    chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
    dpkg-deb --root-owner-group -Zzstd -z6 --build "$root" "$out/$1_${version}_$architecture.deb" >>"$log" 2>&1 ||
        failed "the package $1 could not be built"
    say "$out/$1_${version}_$architecture.deb"
}

# parts WHICH NAME: the Python packages of the lock files, in /opt/gleaner of a package.
parts() {
    locked "$1" >"$work/$1.lock"
    mkdir -p "$place/$2/opt"
    packages "$work/$1.lock" "$place/$2/opt/gleaner"
    find "$place/$2" -name __pycache__ -type d -prune -exec rm -rf {} +
}

# contained PART: the lines of its lock file that lie in a package here. A lock file also has lines for other systems.
contained() {
    local line name version
    one_line_each "$1" | while read -r line; do
        name=${line%%[=[]*} version=${line#*==}
        [ -z "$(find "$place" -iname "${name//[-.]/_}-${version%% *}.dist-info" -print -quit)" ] || printf '%s\n' "$line"
    done
}

parts both gleaner-client
environment=$place/gleaner-client/opt/gleaner
ln -sf "/usr/bin/python$python_version" "$environment/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$python_version" >"$environment/pyvenv.cfg"
own_tree=$(own)
cp -a "$own_tree/opt/gleaner/." "$environment/"
mkdir -p "$place/gleaner-client/usr/bin" "$place/gleaner-client/usr/share/man/man1"
ln -s /opt/gleaner/bin/glean "$place/gleaner-client/usr/bin/glean"
"$python" "$repo_dir/packaging/man_pages.py" "$place/gleaner-client/usr/share/man/man1"
gzip -9n "$place/gleaner-client/usr/share/man/man1/"*.1
for shell in bash:bash-completion/completions/glean zsh:zsh/vendor-completions/_glean fish:fish/vendor_completions.d/glean.fish; do
    into=$place/gleaner-client/usr/share/${shell#*:}
    mkdir -p "$(dirname "$into")"
    _GLEAN_COMPLETE=source_${shell%%:*} "$repo_dir/.venv/bin/glean" >"$into"
done
package gleaner-client "python3 (>= $python_version), python3 (<< $next_python)" "Harvest idle node time of a Slurm cluster: the command glean"

parts agent gleaner-node
mkdir -p "$place/gleaner-node/usr/bin"
ln -s /opt/gleaner/bin/glean-agent "$place/gleaner-node/usr/bin/glean-agent"
package gleaner-node "gleaner-client (= $version), criu (>= 4.1), runc, tar, gzip" "Harvest idle node time of a Slurm cluster: a compute node"

parts control gleaner-control
mkdir -p "$place/gleaner-control/usr/bin"
ln -s /opt/gleaner/bin/gleaner-slurm-admin "$place/gleaner-control/usr/bin/gleaner-slurm-admin"
package gleaner-control "gleaner-client (= $version), openssl" "Harvest idle node time of a Slurm cluster: the control program"

for part in agent control; do
    contained "$part" >"$work/$part.contained"
    UV_PYTHON=$python "$repo_dir/.venv/bin/uv" run -q --isolated --no-project --with-requirements "$repo_dir/locks/sbom.lock" \
        cyclonedx-py requirements --pyproject "$repo_dir/pyproject.toml" --output-reproducible \
        -o "$out/gleaner-${part}_$version.cdx.json" "$work/$part.contained" >>"$log" 2>&1 ||
        failed "the list of the parts of $part could not be made"
    say "$out/gleaner-${part}_$version.cdx.json"
done
cp "$(dirname "$own_tree")"/*.whl "$out"
say "$(ls "$out"/*.whl)"
rm -rf "$place"
