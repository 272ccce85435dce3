#!/bin/sh
# up.sh SPARKCTL NODES: starts the embedded cluster, or shows the one that already serves.
set -eu
sparkctl=$1 nodes=$2
if "$sparkctl" status >/dev/null 2>&1; then
    echo "== a cluster of this machine already serves (make down ends it)"
    exec "$sparkctl" status
fi
exec "$sparkctl" up --nodes "$nodes"
