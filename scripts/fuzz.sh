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
cargo +nightly metadata -q --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null ||
  { echo "fuzz/Cargo.lock is not up to date: cargo metadata --manifest-path fuzz/Cargo.toml" >&2; exit 1; }
# Without address sanitizer: the code is free of unsafe, so what is looked for is panics, hangs and memory.
# More than one codegen unit (theirs is one) builds in half the time.
options=(--sanitizer none --codegen-units 16)
cargo +nightly fuzz build "${options[@]}"
for target in $targets; do
  [ -n "$(ls -A "fuzz/corpus/$target" 2>/dev/null)" ] || { echo "fuzz/corpus/$target is empty" >&2; exit 1; }
  mkdir -p ".cache/fuzz/$target"
  printf '\nfuzz %s for %s s\n' "$target" "$seconds"
  if ! cargo +nightly fuzz run "${options[@]}" "$target" ".cache/fuzz/$target" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -verbosity=0 -print_final_stats=1; then
    printf 'fuzz %s found something: see fuzz/artifacts/%s\n' "$target" "$target" >&2
    exit 1
  fi
done
