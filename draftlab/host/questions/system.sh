ask_system() {
    put uname "$(uname -snrm)"
    put user "$(id -un)"
    put home "$HOME"
    put path "$PATH"
    show os-release /etc/os-release
}
