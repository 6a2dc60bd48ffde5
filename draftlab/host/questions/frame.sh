# The probe of draftlab: asks this machine what it has. POSIX sh; writes nothing, needs no python.
#
# Answers are parts: a line break, the marker, a label, a line break, then raw bytes up to the next
# part. The marker is random and travels on standard input only, so nothing that is shown can
# imitate it. A part "begin NAME" opens the answer to a question, "end NAME STATUS" closes it.

LC_ALL=C
export LC_ALL
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY CDPATH GREP_OPTIONS POSIXLY_CORRECT
: "${HOME:=/}"

part() { # LABEL
    printf '\n%s %s\n' "$MARK" "$1"
}

put() { # LABEL TEXT
    printf '\n%s %s\n%s' "$MARK" "$1" "$2"
}

show() { # LABEL FILE: the file's bytes, or that there is no such file
    if [ -r "$2" ]; then
        part "$1"
        cat "$2"
    else
        part "no-$1"
    fi
}

have() { # COMMAND
    command -v "$1" >/dev/null 2>&1
}

kill_tree() { # PID: kill it and all that it started
    for kin in "$1" $(kin_of "$1"); do
        kill -KILL "$kin" 2>/dev/null
    done
}

kin_of() { # PID: what it started, and what that started
    for kid in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        echo "$kid"
        (kin_of "$kid")
    done
}

# A subshell that sleeps SECONDS and then runs ACTION and exits with 7; TERM ends it and its sleep.
alarm() { # SECONDS ACTION...
    seconds=$1
    shift
    nap=
    trap '[ -z "$nap" ] || kill "$nap"; exit 0' TERM
    sleep "$seconds" &
    nap=$!
    wait "$nap"
    trap '' TERM # from here on it is carried through, though what it waited for may end
    "$@"
    exit 7
}

bounded() { # SECONDS COMMAND...: its output and status; 124 where it had to be killed
    limit=$1
    shift
    "$@" &
    work=$!
    (alarm "$limit" kill_tree "$work") >/dev/null 2>&1 &
    guard=$!
    wait "$work"
    code=$?
    kill "$guard" 2>/dev/null
    wait "$guard" 2>/dev/null # a guard that dies before its trap is set makes the shell say so
    [ $? = 7 ] && code=124
    return "$code"
}

# Unlike in `bounded`, nothing waits for what cannot be killed (a process inside a stuck driver).
ask() { # QUESTION SECONDS: run ask_QUESTION, go on after SECONDS whatever happens
    part "begin $1"
    late=0
    ("ask_$1") </dev/null 2>/dev/null &
    asked=$!
    (alarm "$2" kill -USR1 $$) </dev/null >/dev/null 2>&1 &
    watch=$!
    wait "$asked"
    code=$?
    kill "$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    if [ "$late" = 1 ]; then
        kill_tree "$asked"
        sleep 1
        part "end $1 late"
    else
        part "end $1 $code"
    fi
}
trap 'late=1' USR1

home_path() { # PATH: with a leading ~ made the home folder, and absolute
    case $1 in
    '~') printf '%s' "$HOME" ;;
    '~/'*) printf '%s/%s' "${HOME%/}" "${1#??}" ;;
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "${HOME%/}" "$1" ;;
    esac
}
