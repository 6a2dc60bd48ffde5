ask_models() {
    each_root models_under
    [ "$HUB" = yes ] || return 0
    caches='|'
    for cache in "${HF_HUB_CACHE:-}" "${HUGGINGFACE_HUB_CACHE:-}" "${HF_HOME:+$HF_HOME/hub}" \
        "${XDG_CACHE_HOME:-$HOME/.cache}/huggingface/hub"; do
        case $caches in *"|$cache|"*) continue ;; esac
        caches="$caches$cache|"
        [ -d "$cache" ] && models_under "$cache"
    done
}

models_under() { # FOLDER as asked
    put root "$1"
    place=$(home_path "$1"; printf x)
    place=${place%x}
    put at "$place"
    if [ ! -d "$place" ]; then
        part no-root
    elif ! have find || ! stat -L -c %s / >/dev/null; then
        part no-stat
    else
        # For each file: device, inode, size; then its name, whatever is in it.
        look "$place" -exec stat -L -c "
$MARK file %d %i %s
%n" {} +
        put listed $?
        look "$place" \( -name config.json -o -name '*.index.json' -o -size -3 \
            \( -name '*.safetensors' -o -name '*.bin' -o -name '*.pt' -o -name '*.pth' -o -name '*.gguf' \) \) \
            -exec sh -c "$READ_SMALL" "$MARK" {} +
        put read $?
    fi
}

look() { # FOLDER TEST...
    top=$1
    shift
    # The hub's blobs are reached through the links of its snapshots.
    find -L "$top"/ -maxdepth 6 \( -name .git -o -name blobs -o -name .cache -o -name node_modules \) -prune \
        -o -type f "$@"
}

READ_SMALL='
for file; do
    printf "\n%s of\n%s" "$0" "$file"
    case $file in
    */config.json)
        printf "\n%s config\n" "$0"
        head -c 65536 "$file"
        ;;
    *.index.json)
        printf "\n%s index\n" "$0"
        tr "," "\n" <"$file" | sed -n "s/.*: *\"\([^\"]*\)\"[^\"]*$/\1/p" | sort -u
        printf "\n%s index-bytes\n" "$0"
        tr "," "\n" <"$file" | sed -n "s/.*\"total_size\": *\([0-9][0-9]*\).*/\1/p"
        ;;
    *)
        printf "\n%s small\n" "$0"
        head -c 400 "$file"
        ;;
    esac
done
'
