ask_scripts() {
    for file in "$HOME"/*.sh "$HOME"/*.bash "$HOME"/*.py "$HOME"/*.ipynb "$HOME"/bin/* "$HOME"/scripts/*; do
        [ -f "$file" ] && put script "$file"
    done
}
