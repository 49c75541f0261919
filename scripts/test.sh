#!/usr/bin/env bash
# Everything that must hold before a change lands, with the time that each section took.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PWD/.cache/tools/bin:$PATH" CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0

FUZZ_SECONDS=20 # per target, on the committed corpus; the long form is make fuzz
timings=()
section() { # section NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  printf '\n===== %s\n' "$name"
  if ! "$@"; then
    printf '\nFAILED: %s (after %s s): %s\n' "$name" $((SECONDS - start)) "$*"
    exit 1
  fi
  timings+=("$(printf '%5s s  %s' $((SECONDS - start)) "$name")")
}

counted() { # print what they counted: crash states tried, rows run, rows of what is not built
  cargo test --locked --workspace --lib -- --nocapture crash_tests:: vectors fixture every_vector &&
    cargo test --locked --test integration vectors:: -- --nocapture
}

tree_is_clean() { # tests must not write into the tree
  [ "$(git status --porcelain)" = "$before" ] || { git status --short; return 1; }
}

before=$(git status --porcelain)
section "install" scripts/install.sh test
section "format" cargo fmt --all --check
section "clippy" cargo clippy -q --locked --workspace --all-targets -- -D warnings
section "licences, bans, sources" cargo deny --log-level warn check licenses bans sources
section "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc -q --locked --workspace --no-deps --document-private-items
section "release build" cargo build -q --locked --release
section "unit tests" cargo test --locked --workspace --lib --bins -- --skip crash_tests:: --skip vectors --skip fixture
section "crash states, vectors, fixtures" counted
# The processes under test are the binary that users run.
export TRIBUTARY_BIN="$PWD/target/release/tributary"
section "integration tests" cargo test --locked --test integration -- --skip lab:: --skip crash:: --skip vectors::
# One at a time: each keeps both cores busy, and measures pauses.
section "faults" cargo test --locked --test integration -- --test-threads=1 --nocapture lab:: crash::
section "fuzz" scripts/fuzz.sh "$FUZZ_SECONDS"
section "tree is clean" tree_is_clean

printf '\n===== time\n'
printf '%s\n' "${timings[@]}"
printf '%5s s  in all\n' "$SECONDS"
