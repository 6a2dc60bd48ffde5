#!/usr/bin/env bash
# transformers_serve.sh PEERS: an environment that runs `transformers serve`, once.
# It looks into the project's own for torch and transformers, and adds what only a server needs.
set -euo pipefail
version=5.24.0
place=$1/transformers-serve-$version
link=$1/transformers-serve
[ -f "$place/whole" ] && exec ln -sfn "${place##*/}" "$link"
rm -rf "$place"
mkdir -p "$1"
python=.venv/bin/python
$python -m venv "$place"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
$python -c "$packages" > "$("$place/bin/python" -c "$packages")/project.pth"
"$place/bin/pip" install --quiet "transformers[serving]==$version" torch==2.13.0 \
    accelerate==1.15.0 fastapi==0.165.0 openai==3.57.0 starlette==1.10.0 uvicorn==0.54.0
touch "$place/whole"
ln -sfn "${place##*/}" "$link"
