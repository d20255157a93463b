#!/usr/bin/env bash
# All that stands between a fresh machine and a running cluster, for the demos. (`make test` has steps of its own, beside
# which its tests run already: tests/suite/run.py.)
#
# Every step finds out whether it is needed. The uninterrupted runs that results are compared with are computed
# while the larger images build and the cluster starts.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo_dir"

as_root
mkdir -p "$data_dir/build"
touch "$data_dir/began"

stage() { # stage TEXT USUALLY: the times are of two cores and a fast network, the first time and later
    [ -z "${began_s:-}" ] || say "   $((SECONDS - began_s)) s"
    began_s=$SECONDS
    [ $# = 0 ] || say "== $1 (usually $2)"
}

# The seconds of downloads in the logs of this run, as apt (Fetched ...) and uv (Prepared ...) give them.
downloads_s() {
    find "$data_dir/setup.log" "$data_dir/build" -maxdepth 1 -name '*.log' -newer "$data_dir/began" -exec cat {} + |
        sed -nE 's/^(Fetched|Prepared) .* in ([^(]*).*/\2/p' | tr ' ' '\n' |
        awk '/[0-9]ms$/ { s += $1 / 1000; next } /[0-9]m(in)?$/ { s += 60 * $1; next } /[0-9]s$/ { s += $1 } END { printf "%.0f", s }'
}

stage "1 of 5: packages of this machine, an engine of its own" "1 min, later 1 s"
deploy/setup.sh "$@"
deploy/engine.sh start

stage "2 of 5: a small Debian with Python as an image, the development environment" "1 min, later 1 s"
images/build.sh --only python & # needs nothing of the development environment, which is mostly fetched meanwhile
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
