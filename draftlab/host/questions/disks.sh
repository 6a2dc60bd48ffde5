ask_disks() {
    show mounts /proc/self/mounts
    each_path one_disk
}

one_disk() { # PATH as asked
    put path "$1"
    place=$(home_path "$1"; printf x)
    place=${place%x}
    put full "$place"
    there=$place
    while [ ! -e "$there" ] && [ "$there" != / ]; do
        there=${there%/}
        case $there in */*) there=${there%/*} ;; esac
        there=${there:-/}
    done
    put at "$there"
    [ -w "$there" ] && part writable
    part bytes
    bounded 5 df -P -k "$there" 2>&1
    put bytes-status $?
    part inodes
    bounded 5 df -P -i "$there" 2>&1
    put inodes-status $?
}
