#!/usr/bin/env bash
# sglang_contract.sh PEERS: SGLang's own decoder of requests and replies into PEERS/sglang-VERSION.
# The server needs a GPU; this one file of its wheel says what it would answer with 400.
set -euo pipefail
version=0.5.23 sha256=00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937
place=$1/sglang-$version
link=$1/sglang
[ -f "$place/api_types.py" ] && exec ln -sfn "${place##*/}" "$link"
mkdir -p "$1"
work=$(mktemp -d "$1/fetching-XXXXXX")
trap 'rm -rf "$work"' EXIT

.venv/bin/python -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_34_x86_64 --dest "$work" "sglang==$version"
wheel=$work/sglang-$version-cp311-cp311-manylinux_2_34_x86_64.whl
echo "$sha256  $wheel" | sha256sum --check --quiet
.venv/bin/python -m pip install --quiet --no-deps --target "$work/whole" msgspec==0.23.0
.venv/bin/python - "$wheel" "$work/whole/api_types.py" << 'END'
import sys, zipfile
from pathlib import Path
wheel, file = sys.argv[1:]
Path(file).write_bytes(zipfile.ZipFile(wheel).read("sglang/api/v1/api_types.py"))
END
rm -rf "$place"
mv "$work/whole" "$place"
ln -sfn "${place##*/}" "$link"
