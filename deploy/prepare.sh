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
deploy/setup.sh
deploy/engine.sh start
images/build.sh --only python & # needs nothing of the development environment, which is mostly fetched meanwhile
first_image=$!
make --no-print-directory venv
wait $first_image
images/build.sh --only pythia
.venv/bin/python -m demo.reference &
reference=$!
trap 'kill $reference 2>/dev/null || true' EXIT
images/build.sh
deploy/cluster.sh up
wait $reference
trap - EXIT
