#!/usr/bin/env bash
# Starts Ray on machines that are reached by ssh: bare.sh HEAD WORKER ...; `bare.sh stop HEAD WORKER ...` ends it.
# The same environment is at $VENV on all of them; names or addresses are those by which the machines reach each other.
set -euo pipefail

VENV="${VENV:-$PWD/.venv}"
PORT="${PORT:-6379}"

on() { # on HOST COMMAND...: runs it there, in the environment, with what all processes of the cluster need
    local host=$1
    shift
    ssh -o BatchMode=yes "$host" "source '$VENV/bin/activate' && export RAY_AUTH_MODE=token && $*"
}

if [ "${1:-}" = stop ]; then
    shift
    for host in "$@"; do on "$host" ray stop || true; done
    exit
fi

head=$1
shift
on "$head" "ray get-auth-token --generate > /dev/null && ray start --head --port=$PORT --disable-usage-stats"
for host in "$@"; do
    # Through the pipe, so that the token is on no command line.
    on "$head" ray get-auth-token | ssh -o BatchMode=yes "$host" 'umask 077 && mkdir -p ~/.ray && cat > ~/.ray/auth_token'
    on "$host" "ray start --address=$head:$PORT --disable-usage-stats"
done
on "$head" fanfold doctor
