ask_tools() {
    for tool in uv git rsync tmux screen nvcc curl wget conda gcc; do
        put tool "$tool"
        found=$(command -v "$tool")
        case $found in
        /*) part on-path ;;
        *) found=$(off_path "$tool") ;;
        esac
        [ -n "$found" ] || continue
        put file "$found"
        case $tool in
        uv | git | rsync | nvcc)
            part version
            bounded 5 "$found" --version 2>&1
            put version-status $?
            ;;
        esac
    done
}

off_path() { # TOOL: its file where an interactive shell would often find it
    for file in "$HOME/.local/bin/$1" "$HOME/.cargo/bin/$1" "$HOME/bin/$1" /usr/local/bin/"$1" \
        /opt/homebrew/bin/"$1" /snap/bin/"$1" /usr/local/cuda/bin/"$1" /usr/local/cuda-*/bin/"$1" \
        "$HOME"/*conda3/bin/"$1" "$HOME"/*forge*/bin/"$1" /opt/*/bin/"$1"; do
        if [ -f "$file" ] && [ -x "$file" ]; then
            printf '%s' "$file"
            return 0
        fi
    done
}
