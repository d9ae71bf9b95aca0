#!/usr/bin/env bash
# The tests on a real Slurm, the whole training run of docs/trainer/slurm.sh included. Needs root and Debian's packages
# slurm-wlm and munge; the tests bring the daemons up themselves, and take them down.
#
#   tests/slurm/run.sh [PYTHON]      PYTHON: of an environment with rlcheck[train] and the tests' packages
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
for tool in slurmctld slurmd srun munged unshare nsenter; do
  PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || { echo "run.sh: no $tool (apt-get install slurm-wlm munge)" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "run.sh: needs root, to make network namespaces" >&2; exit 2; }
exec "$python" -m pytest tests/slurm -v
