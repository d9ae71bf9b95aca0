"""The program of one rank of `rlcheck nccl`: joins groups, runs collectives, says what came out. Needs torch."""
