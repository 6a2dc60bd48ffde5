ask_memory() {
    show meminfo /proc/meminfo
    [ -r /proc/self/cgroup ] || return 0
    while IFS=: read -r _ names inner; do
        case ,$names, in
        ,,) memory_groups "$(cgroup2_root)" "$inner" memory.max memory.current ;;
        *,memory,*) memory_groups /sys/fs/cgroup/memory "$inner" memory.limit_in_bytes memory.usage_in_bytes ;;
        esac
    done </proc/self/cgroup
}

cgroup2_root() {
    if [ -d /sys/fs/cgroup/unified ]; then echo /sys/fs/cgroup/unified; else echo /sys/fs/cgroup; fi
}

memory_groups() { # ROOT INNER LIMIT USAGE: this group and all above it
    inner=${2%/}
    while :; do
        if [ -r "$1$inner/$3" ] && [ -r "$1$inner/$4" ]; then
            put group "$1$inner"
            read -r limit <"$1$inner/$3"
            put limit "$limit"
            read -r usage <"$1$inner/$4"
            put usage "$usage"
            show stat "$1$inner/memory.stat"
        fi
        [ -n "$inner" ] || break
        inner=${inner%/*}
    done
}
