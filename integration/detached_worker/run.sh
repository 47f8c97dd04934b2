#!/usr/bin/env bash
# The whole flow in one command: a cluster, a server that makes detached workers and exits, a client that trains them.
# Options go to server.py and client.py alike; see README.md. The last line on standard output is one JSON object.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python}
# Under `uv run`, Ray would start each worker through `uv run` in a copy of the folder; the ranks need no more than this
# Python's own packages.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
group=trainer-$$
scratch=
ray_pid=
child=

say() { printf '%s\n' "$*" >&2; }

cleanup() {
    local status=$?
    trap - EXIT INT TERM HUP
    if [[ -n $child ]]; then
        kill -TERM "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    if [[ -n ${server_ran:-} ]]; then
        "$python" "$here/server.py" --stop --name "$group" >&2 || true
    fi
    if [[ -n $ray_pid ]]; then
        # Only the cluster that was started here: `ray stop` would end every cluster of this user on this machine.
        kill -TERM "$ray_pid" 2>/dev/null || true
        wait "$ray_pid" 2>/dev/null || true
    fi
    [[ -z $scratch ]] || rm -rf "$scratch"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

port_is_free() { "$python" -c 'import socket, sys; socket.socket().bind(("127.0.0.1", int(sys.argv[1])))' "$1" 2>/dev/null; }

start_cluster() {
    if [[ -n ${RAY_PORT:-} ]] && ! port_is_free "$RAY_PORT"; then
        say "error: RAY_PORT=$RAY_PORT is taken on this machine; take another, or leave it unset for one that is free"
        exit 1
    fi
    local base=${TMPDIR:-/tmp}
    ((${#base} <= 40)) || base=/tmp # Ray's sockets lie below, and their paths have a limit of 107 bytes
    scratch=$(mktemp -d "$base/fanfold.XXXXXX")
    export TMPDIR=$scratch # what the libraries leave behind goes with it
    # A token of its own, so that nobody else on this machine can run code through the cluster.
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$scratch/token RAY_USAGE_STATS_ENABLED=0
    (umask 077 && "$python" -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")
    for _ in 1 2 3; do # a free port may be taken by somebody else before Ray binds it
        try_port "${RAY_PORT:-$(free_port)}" && return
        [[ -z ${RAY_PORT:-} ]] || break
    done
    say "error: no Ray cluster could be started; the end of its output:"
    tail -n 15 "$scratch/ray.log" >&2
    exit 1
}

try_port() {
    # A job of its own process group: Ctrl-C reaches this script first, which then ends things in order.
    set -m
    "$("$python" -c 'import sys; print(sys.prefix)')/bin/ray" start --head --block --node-ip-address=127.0.0.1 --port="$1" --include-dashboard=false \
        --temp-dir="$scratch" >"$scratch/ray.log" 2>&1 </dev/null &
    ray_pid=$!
    set +m
    export RAY_ADDRESS=127.0.0.1:$1
    for _ in $(seq 600); do
        grep -qs 'Ray runtime started' "$scratch/ray.log" && return 0
        kill -0 "$ray_pid" 2>/dev/null || break
        sleep 0.2
    done
    kill -TERM "$ray_pid" 2>/dev/null || true
    wait "$ray_pid" 2>/dev/null || true
    ray_pid=
    return 1
}

# In the background, so that a signal ends the script at once and not when the command has finished.
run() {
    "$@" &
    child=$!
    wait "$child"
    child=
}

seconds_since() { "$python" -c 'import sys, time; print(f"{time.time() - float(sys.argv[1]):.2f}")' "$1"; }

"$python" "$here/options.py" "$@" # wrong options are refused before anything is started; --help ends here
began=$(date +%s.%N)
[[ -n ${RAY_ADDRESS:-} ]] || start_cluster
export PHASE_SECONDS="cluster=$(seconds_since "$began")"
began=$(date +%s.%N)
server_ran=1
run "$python" "$here/server.py" --name "$group" "$@" >&2
PHASE_SECONDS+=" server=$(seconds_since "$began")"
run "$python" "$here/client.py" --name "$group" "$@"
