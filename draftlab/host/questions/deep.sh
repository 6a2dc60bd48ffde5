# Reads a file that is there and computes for a few seconds; writes nothing.
ask_deep() {
    found_big=no
    each_root read_big
    if [ "$HUB" = yes ] && [ "$found_big" = no ]; then
        read_big "${HF_HUB_CACHE:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/hub}"
    fi
    part zeros
    bounded 10 dd if=/dev/zero of=/dev/null bs=67108864 count=32 2>&1
    put zeros-status $?
    torch_python=
    numpy_python=
    ask_pythons >/dev/null
    put torch-python "$torch_python"
    put numpy-python "$numpy_python"
    program=${torch_python:-$numpy_python}
    [ -n "$program" ] || return 0
    part measured
    bounded 40 "$program" -c "$MEASURE" 2>/dev/null
    put measured-status $?
}

read_big() { # FOLDER: 128 MiB of one file of at least 256 MiB in it
    [ "$found_big" = no ] || return 0
    place=$(home_path "$1"; printf x)
    place=${place%x}
    [ -d "$place" ] || return 0
    part big
    bounded 20 look "$place" -size +524288 -exec sh -c "$READ_BIG" "$MARK" {} +
    put big-status $?
    found_big=yes
}

READ_BIG='
printf "\n%s file\n%s" "$0" "$1"
printf "\n%s direct\n" "$0"
dd if="$1" of=/dev/null bs=4194304 count=32 iflag=direct 2>&1
printf "\n%s direct-status\n%s" "$0" $?
printf "\n%s plain\n" "$0"
dd if="$1" of=/dev/null bs=4194304 count=32 skip=32 2>&1
'
