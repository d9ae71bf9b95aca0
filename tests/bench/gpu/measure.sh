#!/bin/bash
# GRPO on a 0.5B shape on 1 and on all GPUs of this machine: `measure.sh OUT [GPUS...]` writes tables and metrics to OUT.
set -u
out=$1
shift
cd "$(dirname "$0")/../../.." || exit 1
for gpus in "${@:-1}"; do
  run=$out/grpo-$gpus
  devices=$(seq -s, 0 $((gpus - 1)))
  CUDA_VISIBLE_DEVICES=$devices timeout 400 python3 -m rltrain \
    run tests/bench/gpu/grpo-0.5b.yaml trainer.default_local_dir="$run" trainer.n_gpus_per_node="$gpus" ${RLTRAIN_OPTIONS:-} ||
    echo "exit code $?"
  python3 tests/bench/gpu/report.py "$run"
done
