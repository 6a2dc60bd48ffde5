ask_pythons() {
    seen='|'
    on_path=on-path
    set -f
    saved=$IFS
    IFS=:
    for bin in $PATH; do
        IFS=$saved
        set +f
        pythons_in "$bin"
    done
    IFS=$saved
    set +f
    on_path=off-path
    for bin in "$HOME/.local/bin" "$HOME/bin" /usr/local/bin /usr/bin /opt/homebrew/bin /opt/*/bin \
        /usr/local/*/bin "$HOME"/.pyenv/versions/*/bin "$HOME"/.local/share/uv/python/*/bin; do
        pythons_in "$bin"
    done
    for file in "$HOME"/pyvenv.cfg "$HOME"/*/pyvenv.cfg "$HOME"/.[!.]*/pyvenv.cfg "$HOME"/*/*/pyvenv.cfg \
        "$HOME"/*/.[!.]*/pyvenv.cfg "$HOME"/*/*/.venv/pyvenv.cfg "$HOME"/*/*/venv/pyvenv.cfg \
        "$HOME"/.virtualenvs/*/pyvenv.cfg "$HOME"/.local/share/virtualenvs/*/pyvenv.cfg \
        /opt/*/pyvenv.cfg /opt/*/*/pyvenv.cfg /venv/pyvenv.cfg /workspace/*/pyvenv.cfg; do
        [ -f "$file" ] && one_venv "${file%/*}"
    done
    for base in "$HOME"/*conda3 "$HOME"/*forge* "$HOME"/micromamba "$HOME"/.conda /opt/*; do
        for meta in "$base/conda-meta" "$base"/envs/*/conda-meta; do
            [ -d "$meta" ] && one_conda "${meta%/*}"
        done
    done
}

is_new() { # KEY: whether it was not seen before; now it is
    case $seen in *"|$1|"*) return 1 ;; esac
    seen="$seen$1|"
}

pythons_in() { # FOLDER of programs
    for file in "$1"/python3 "$1"/python3.[0-9] "$1"/python3.[0-9][0-9] "$1"/python; do
        if [ ! -f "$file" ] || [ ! -x "$file" ]; then continue; fi
        if [ "$file" != "$1/python3" ] && [ "$file" -ef "$1/python3" ]; then continue; fi
        if [ -f "${1%/*}/pyvenv.cfg" ]; then
            one_venv "${1%/*}"
        elif [ -d "${1%/*}/conda-meta" ]; then
            one_conda "${1%/*}"
        else
            one_python "$file"
        fi
    done
}

one_python() { # FILE
    real=$(readlink -f "$1")
    is_new "${real:-$1}" || return 0
    # What `python3` is matters; what the next twenty shims are does not.
    if is_wrapper "$1"; then is_new wrapper || return 0; fi
    put python "$1"
    part "$on_path"
    prefix=${real%/*}
    prefix=${prefix%/*}
    minor=${real##*/python}
    header=$prefix/include/python$minor/patchlevel.h
    if is_wrapper "$1"; then
        part wrapper
        run_python "$1"
        return 0
    elif [ -r "$header" ]; then # much quicker than starting it
        part header
        grep 'define PY_VERSION ' "$header"
    else
        run_python "$1"
    fi
    case $minor in
    3.[0-9] | 3.[0-9][0-9]) ;;
    *) return 0 ;;
    esac
    program=$1
    sites "$prefix/lib/python$minor/site-packages" "$prefix/lib64/python$minor/site-packages" \
        "$HOME/.local/lib/python$minor/site-packages"
    [ "$prefix" = /usr ] && sites /usr/lib/python3/dist-packages /usr/local/lib/python"$minor"/dist-packages
}

run_python() { # FILE: sets minor
    found=$(bounded 5 "$1" -V 2>&1)
    put version-status $?
    put version "$found"
    minor=${found#Python }
    minor=${minor%.*}
}

is_wrapper() { # FILE: a script, as pyenv's shims are, and no program
    start=
    read -r start <"$1"
    case $start in '#!'*) return 0 ;; esac
    return 1
}

one_venv() { # FOLDER
    is_new "$1" || return 0
    put venv "$1"
    part "$on_path"
    show cfg "$1/pyvenv.cfg"
    program=$1/bin/python
    sites "$1"/lib/python3*/site-packages
}

one_conda() { # FOLDER
    is_new "$1" || return 0
    put conda "$1"
    part "$on_path"
    for file in "$1"/conda-meta/python-3*.json; do
        [ -f "$file" ] && put conda-python "${file##*/}"
    done
    program=$1/bin/python
    sites "$1"/lib/python3*/site-packages
}

sites() { # FOLDERS of packages of $program
    for site; do
        [ -d "$site" ] || continue
        put site "$site"
        if [ -r "$site/torch/version.py" ]; then
            torch_python=${torch_python:-$program}
            part torch
            head -c 4096 "$site/torch/version.py"
        fi
        [ -d "$site/numpy" ] && numpy_python=${numpy_python:-$program}
        for info in "$site"/*.dist-info; do
            case ${info##*/} in
            torch-* | numpy-* | transformers-* | safetensors-* | tokenizers-* | vllm-* | sglang-* | triton-* | \
                flash_attn-* | flash_linear_attention-* | causal_conv1d-* | draftlab-*) put package "${info##*/}" ;;
            esac
        done
    done
}
