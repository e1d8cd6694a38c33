#!/usr/bin/env bash
# Two nodes with two ranks each. A sidecar comes up beside the first rank of each node.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
set -euo pipefail

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
DAF_JOB_TOKEN=$(openssl rand -hex 24)
export DAF_JOB_TOKEN head_node
export PYTORCH_ALLOCATOR=daf
# The nodes' network is trusted here; else set DAF_TLS_CERT and DAF_TLS_KEY in place of this.
export DAF_PLAIN_HTTP=on DAF_SIDECAR=0.0.0.0:8787
export DAF_RUNTIME_DIR=/tmp/daf-$USER-$SLURM_JOB_ID

srun torchrun --nnodes=2 --nproc-per-node=2 --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d \
    --rdzv-endpoint="$head_node:29400" "${1:-train.py}"
