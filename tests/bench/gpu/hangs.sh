#!/bin/bash
# Hangs planted in real NCCL jobs on the GPUs of this machine, and what `rlcheck hang` says of each:
#
#   hangs.sh OUT [WHEELS [GPUS [SECONDS]]]
#
# OUT gets hangs.json (every placement; of a wrong one also what was seen) and hangs.txt. WHEELS: a directory of wheels
# for this Python, where nothing can be fetched: those of `pip download --dest WHEELS --only-binary :all: \
#   --python-version 3.12 h2 msgspec nvidia-ml-py packaging psutil PyYAML rich 'typer>=0.26.1,<0.29' py-spy`.
# Begins no placement after SECONDS (300), and ends within a minute after that.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
wheels=${2:-}
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd)
gpus=${3:-2}
cd "$(dirname "$0")/../../.." || exit 1
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [ -n "$wheels" ]; then
  for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$site" || exit 1; done
  mkdir -p "$site/bin"
  cp "$site"/*.data/scripts/* "$site/bin" && chmod +x "$site"/bin/*
  export PATH="$site/bin:$PATH"
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
python3 -c 'import torch; print("torch", torch.__version__, "NCCL", torch.cuda.nccl.version())' | tee "$out/hangs.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | tee -a "$out/hangs.txt"
timeout 600 python3 -m tests.bench.hangs --backend nccl --world "$gpus" --times 20 --within "${4:-300}" \
  -o "$out/hangs.json" 2>&1 | tee -a "$out/hangs.txt"
