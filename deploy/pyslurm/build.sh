#!/bin/sh
# Build PySlurm from its source package against the Slurm of this machine: build.sh SOURCE.tar.gz TARGET
#
# Why it is built here: PySlurm is published as source only, each version for one Slurm, and the one on PyPI (25.11) is for
# a Slurm that no Debian has. Debian testing's 26.05 is near enough: with the two headers of include/ in front of Slurm's
# own the unchanged source compiles and works. A site with Slurm 25.11 needs none of this: pip install "gleaner-hpc[pyslurm]".
# When testing has moved on to a Slurm that these headers do not fit, the compiler says so.
# Needs gcc, Python's and Slurm's headers, Cython and setuptools, as the packages of images/slurm-pyslurm/Dockerfile.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
source=$1 target=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tar -xf "$source" -C "$work" --strip-components=1
cd "$work"
# Not optimised: this is for tests, and the compiler is most of the wait.
SLURM_INCLUDE_DIR=$here/include SLURM_LIB_DIR=/usr/lib/$(gcc -print-multiarch) PYSLURM_BUILD_JOBS=2 CFLAGS="-O0 -g0 -w" \
    python3 setup.py build --build-lib built build_ext --parallel 2 >log 2>&1 || { tail -n 25 log >&2; exit 1; }
mkdir -p "$target"
cp -r built/pyslurm "$target"
find "$target" \( -name '*.c' -o -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' \) -delete
