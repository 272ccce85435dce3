#!/bin/sh
# system_packages.sh up|test: installs the Debian packages that `make up` or `make test` needs, where it may
# (root, or sudo without a password). Elsewhere it stops with the one line to type.
set -eu

case "${1:-}" in
    up) wanted="g++ liburing-dev" ;;
    test) wanted="g++ g++-aarch64-linux-gnu liburing-dev fio git iproute2 openssh-client openssh-server procps rsync shellcheck" ;;
    *) echo "usage: $0 up|test" >&2; exit 2 ;;
esac

# The browser of the dashboard's tests. Ubuntu has stubs of these names, which need snap: there they are skipped.
if [ "$1" = test ] && grep -qx 'ID=debian' /etc/os-release 2>/dev/null; then
    wanted="$wanted chromium chromium-driver"
fi

if ! command -v dpkg-query >/dev/null; then
    echo "Only Debian and Ubuntu packages can be installed from here. Install these by other means: $wanted" >&2
    echo "  -> then: make $1 SYSTEM_PACKAGES=mine" >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    as_root=
fi

update_lists() { # once: a fresh machine has none
    [ -n "$as_root" ] && [ -z "${updated:-}" ] || return 0
    updated=yes
    $as_root apt-get update -qq
}

# The interpreter that will own .venv needs its venv module and its headers (for the row store's C++ core).
# One that is not Debian's (pyenv, conda) brings both.
python=$("$(dirname "$0")/find_python.sh" --or-none)
if [ -z "$python" ]; then
    update_lists
    name=$(apt-cache search --names-only '^python3\.1[12]$' | cut -d' ' -f1 | sort | head -n 1)
    name=${name:-python3.11}
    wanted="$wanted $name $name-venv $name-dev"
else
    name=python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip' 2>/dev/null || wanted="$wanted $name-venv"
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
    [ -f "$header" ] || wanted="$wanted $name-dev"
fi

missing=
for package in $wanted; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ -z "$as_root" ]; then
    echo "System packages are missing, and installing them needs root. Type this line, then make $1 again:" >&2
    echo "  -> sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
echo "== system packages:$missing"
update_lists
# shellcheck disable=SC2086  # a list of words
$as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null

# The tests run their own SSH servers in their own namespaces: this machine need not start to accept logins.
case "$missing" in
    *openssh-server*)
        if [ -d /run/systemd/system ]; then
            $as_root systemctl disable --now ssh.service ssh.socket ||
                echo "note: if you do not want the SSH service that came along: systemctl disable --now ssh" >&2
        fi ;;
esac
