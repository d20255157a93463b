#!/usr/bin/env bash
# All steps from a fresh machine to a running cluster, for the demos. (`make test` has its own steps in
# tests/suite/run.py, because its first tests already run during them.)
#
# Every step is skipped if it is not needed. The uninterrupted runs with which results are compared are computed while
# the larger images are built and the cluster starts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo_dir"

as_root
mkdir -p "$data_dir/build"
touch "$data_dir/began"

stage() { # stage TEXT USUALLY: the usual times, at first and later, on two cores with a fast network
    [ -z "${began_s:-}" ] || say "   $((SECONDS - began_s)) s"
    began_s=$SECONDS
    [ $# = 0 ] || say "== $1 (usually $2)"
}

# The total seconds of downloads, which apt (Fetched ...) and uv (Prepared ...) wrote to the logs of this run.
downloads_s() {
    find "$data_dir/setup.log" "$data_dir/build" -maxdepth 1 -name '*.log' -newer "$data_dir/began" -exec cat {} + |
        sed -nE 's/^(Fetched|Prepared) .* in ([^(]*).*/\2/p' | tr ' ' '\n' |
        awk '/[0-9]ms$/ { s += $1 / 1000; next } /[0-9]m(in)?$/ { s += 60 * $1; next } /[0-9]s$/ { s += $1 } END { printf "%.0f", s }'
}

stage "1 of 5: packages of this machine, an engine of its own" "1 min, later 1 s"
deploy/setup.sh "$@"
deploy/engine.sh start

stage "2 of 5: a small Debian with Python as an image, the development environment" "1 min, later 1 s"
images/build.sh --only python & # does not need the development environment, which is fetched at the same time
first_image=$!
make --no-print-directory venv
wait $first_image
images/build.sh --only pythia

stage "3 of 5: the images of the cluster; meanwhile twelve runs without interruption" "3 min, later 2 s"
.venv/bin/python -m demo.reference &
reference=$!
trap 'kill $reference 2>/dev/null || true' EXIT
images/build.sh

stage "4 of 5: a cluster of a head and three nodes" "40 s, later 5 s"
deploy/cluster.sh up
wait $reference
trap - EXIT
stage
say "   of all this, downloads: $(downloads_s) s"
