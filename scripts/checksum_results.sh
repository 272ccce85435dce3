#!/bin/sh
# Write SHA256SUMS into directories under results/ that are no run of `sparkctl bench` (a run has its manifest).
# Without arguments: into all of them. Run it after a measurement was added or changed.
set -eu
cd "$(dirname "$0")/../results"
[ "$#" -gt 0 ] || set -- */
for directory; do
    [ -d "$directory" ] || { echo "$directory must be a directory under results/, got none" >&2; exit 2; }
    [ ! -e "$directory/manifest.json" ] || continue
    (
        cd "$directory"
        find . -type f ! -name SHA256SUMS ! -name 'SHA256SUMS.*' | sed 's|^\./||' | LC_ALL=C sort |
            xargs -d '\n' sha256sum >SHA256SUMS.new
        mv SHA256SUMS.new SHA256SUMS
    )
done
