ask_cpu() {
    show load /proc/loadavg
    if [ -r /proc/cpuinfo ]; then
        part first
        sed '/^[[:space:]]*$/q' /proc/cpuinfo
        part cores
        grep -E '^(processor|physical id|core id)' /proc/cpuinfo
        part flags
        grep -E '^(flags|Features)' /proc/cpuinfo | sort -u
    else
        part no-cpuinfo
    fi
    part allowed
    grep '^Cpus_allowed_list' /proc/self/status
    show frequency /sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq
    for node in /sys/devices/system/node/node[0-9]*; do
        [ -d "$node" ] && put node "${node##*/}"
    done
    if have lscpu; then
        part lscpu
        bounded 3 lscpu
    fi
    [ -r /proc/self/cgroup ] || return 0
    while IFS=: read -r _ names inner; do
        case ,$names, in
        ,,) quotas "$(cgroup2_root)" "$inner" cpu.max ;;
        *,cpu,*) quotas /sys/fs/cgroup/cpu "$inner" cpu.cfs_quota_us cpu.cfs_period_us ;;
        esac
    done </proc/self/cgroup
}

quotas() { # ROOT INNER FILES...: this group and all above it
    root=$1
    inner=${2%/}
    shift 2
    while :; do
        if [ -r "$root$inner/$1" ]; then
            put group "$root$inner"
            for file; do
                read -r value <"$root$inner/$file"
                put quota "$value"
            done
        fi
        [ -n "$inner" ] || break
        inner=${inner%/*}
    done
}
