#!/bin/bash
# `rlcheck nccl` beside a bare torch.distributed loop on 1, 2, … GPUs of this machine, then with settings that must be named:
#
#   collectives.sh OUT [GPUS...]
#
# OUT gets, for each number of GPUs, the record (for `rlcheck nccl --facts`), the report, and the loops' tables.
set -u
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/../../.." || exit 1
rlcheck=(python3 -m rlcheck)
for gpus in "${@:-1}"; do
  devices=$(seq -s, 0 $((gpus - 1)))
  export CUDA_VISIBLE_DEVICES=$devices
  bare() {
    timeout 120 python3 -m torch.distributed.run --standalone --nproc-per-node "$gpus" tests/bench/gpu/bare_collectives.py "$out/bare-$gpus-$1.json"
  }
  echo "== $gpus GPUs"
  for round in 1 2 3; do
    bare "$round"
    timeout 280 "${rlcheck[@]}" nccl --record "$out/nccl-$gpus-$round.json" -v >"$out/nccl-$gpus-$round.txt" 2>&1
    echo "rlcheck nccl on $gpus GPUs: exit code $?"
  done
  bare 4
  python3 tests/bench/gpu/compare_collectives.py "$out"/nccl-"$gpus"-*.json "$out"/bare-"$gpus"-*.json
done
[ "$gpus" -gt 1 ] || exit 0
forced() {
  name=$1
  shift
  env "$@" timeout 120 "${rlcheck[@]}" nccl --quick --record "$out/forced-$name.json" >"$out/forced-$name.txt" 2>&1
  echo "$*: exit code $?"
  grep -E '^ +[✗!] ' "$out/forced-$name.txt"
}
forced p2p NCCL_P2P_DISABLE=1
forced p2p-shm NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
forced interface NCCL_SOCKET_IFNAME=nonesuch0
forced loopback NCCL_SOCKET_IFNAME=lo NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1
