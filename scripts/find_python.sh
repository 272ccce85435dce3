#!/bin/sh
# find_python.sh [--or-none]: prints a Python that SGLang has wheels for. Without one it says what to type and
# fails, or with --or-none prints nothing. $PYTHON, where set, is taken or refused.
set -eu

# 3.11 before 3.12: the pinned versions were run on it.
candidates="python3.11 python3.12 python3"
[ -z "${PYTHON:-}" ] || candidates=$PYTHON

for candidate in $candidates; do
    # The base interpreter, not a shim or a virtual environment that may go away.
    found=$("$candidate" -c '
import sys
if sys.version_info[:2] in ((3, 11), (3, 12)) and sys.implementation.name == "cpython":
    print(sys._base_executable)' 2>/dev/null) || continue
    if [ -n "$found" ]; then
        echo "$found"
        exit 0
    fi
done

[ "${1:-}" != --or-none ] || exit 0
last=${candidates##* }
echo "Python must be CPython 3.11 or 3.12 (SGLang has wheels for no other), got $last: $("$last" -V 2>&1 || echo none)." >&2
echo "  -> sudo apt-get install -y python3.11 python3.11-venv python3.11-dev (or 3.12), or: make PYTHON=/path/to/python3.11" >&2
exit 1
