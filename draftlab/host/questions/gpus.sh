ask_gpus() {
    for device in /sys/bus/pci/devices/*; do
        [ -r "$device/class" ] || continue
        read -r class <"$device/class"
        case $class in
        0x03* | 0x12*)
            read -r vendor <"$device/vendor"
            put display "$vendor"
            ;;
        esac
    done
    [ -e /dev/kfd ] && part kfd
    show driver /proc/driver/nvidia/version
    smi=$(find_smi) || return 0
    put smi "$smi"
    run_smi gpus --query-gpu=index,uuid,memory.total,memory.used,memory.free,driver_version,compute_cap,mig.mode.current,name --format=csv,noheader,nounits
    case $code in
    0) ;;
    124) return 0 ;;
    *) run_smi gpus-old --query-gpu=index,uuid,memory.total,memory.used,memory.free,driver_version,name --format=csv,noheader,nounits ;;
    esac
    [ "$code" = 0 ] || return 0
    run_smi holders --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv,noheader,nounits
    run_smi header
    run_smi list -L
}

run_smi() { # LABEL OPTIONS...
    label=$1
    shift
    part "$label"
    bounded 20 "$smi" "$@" 2>&1
    code=$?
    put "$label-status" "$code"
}

find_smi() {
    command -v nvidia-smi && return 0
    for file in /usr/bin/nvidia-smi /usr/local/nvidia/bin/nvidia-smi /usr/lib/wsl/lib/nvidia-smi \
        /opt/bin/nvidia-smi /run/current-system/sw/bin/nvidia-smi; do
        [ -x "$file" ] && echo "$file" && return 0
    done
    return 1
}
