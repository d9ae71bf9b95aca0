#!/bin/bash
# Does training learn on this machine? `arithmetic-sft`, then `arithmetic-grpo`, stopped and resumed in the middle, on one
# GPU; supervised training continued for the same time, on a second GPU at once where there is one, else afterwards.
#
#   learn.sh OUT [options of learn.py]    OUT gets record.json (figures and the curve), metrics and output of each part
#
# Nine minutes (LIMIT_S: 565 s) with two GPUs, or with one and --share. With one alone,
# a second call with the same WORK does what is left.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../../.." || exit 1
export PYTHONPATH=$PWD:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
exec python3 tests/bench/gpu/learn.py "$out" --work "${WORK:-/tmp/learn}" --limit-s "${LIMIT_S:-565}" "$@"
