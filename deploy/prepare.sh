#!/usr/bin/env bash
# All that stands between a fresh machine and a running cluster: prepare.sh [--tests]
#
# Every step finds out whether it is needed. The uninterrupted runs that results are compared with are computed
# while the larger images build.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo_dir"

deploy/setup.sh "$@"
make --no-print-directory venv
deploy/engine.sh start
images/build.sh --only pythia
.venv/bin/python -m demo.reference &
reference=$!
trap 'kill $reference 2>/dev/null || true' EXIT
images/build.sh
[ "${1:-}" != --tests ] || images/build.sh --only slurm-pyslurm
wait $reference
trap - EXIT
deploy/cluster.sh up
