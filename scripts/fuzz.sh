#!/usr/bin/env bash
# Runs every fuzz target on its committed corpus.   scripts/fuzz.sh SECONDS_PER_TARGET
#
# New inputs go to .cache/fuzz, so that the committed corpus stays as it is; a crash is left in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds per target}
export PATH="$PWD/.cache/tools/bin:$PATH"
targets=$(cargo +nightly fuzz list)
[ -n "$targets" ] || { echo "no fuzz targets" >&2; exit 1; }
for target in $targets; do
  [ -n "$(ls -A "fuzz/corpus/$target" 2>/dev/null)" ] || { echo "fuzz/corpus/$target is empty" >&2; exit 1; }
  mkdir -p ".cache/fuzz/$target"
  printf 'fuzz %s for %s s\n' "$target" "$seconds"
  cargo +nightly fuzz run "$target" ".cache/fuzz/$target" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 2>&1 |
    grep -vE '^(#[0-9]+\s+(NEW|REDUCE|pulse|RELOAD)|\s*(Compiling|INFO))' || exit 1
done
