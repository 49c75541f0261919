#!/usr/bin/env bash
# Installs what is missing, and only that.   scripts/install.sh build | fuzz | lab | test
#
#   build  a C compiler (the linker) and a Rust toolchain
#   fuzz   also a nightly compiler and cargo-fuzz
#   lab    also the namespace tools
#   test   also rustfmt, clippy, cargo-deny, cargo-fuzz, and the Python, Node and Go clients
#
# Packages come from apt-get, and only when run as root; anybody else is told what to install. Nothing runs sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

MINIMUM_RUST=1.88          # rust-version in Cargo.toml
RUSTUP_PATIENCE_SECONDS=10 # where rustup's host is not reached, Debian's compiler is as good
CARGO_DENY=0.20.2
CARGO_FUZZ=0.13.2
TOOLS="$PWD/.cache/tools"

say() { printf 'install: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

APT_UPDATED=
packages() { # packages NAME...: from Debian
  have apt-get || fail "please install: $* (this is not a Debian machine)"
  [ "$(id -u)" = 0 ] || fail "please install: apt-get install $*   (as root; then run make again)"
  say "apt-get install $*"
  [ -n "$APT_UPDATED" ] || { apt-get -qq update; APT_UPDATED=1; }
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

rust_is_enough() {
  have cargo && have rustc || return 1
  local version
  version=$(rustc --version | cut -d' ' -f2)
  [ "$(printf '%s\n%s\n' "$MINIMUM_RUST" "$version" | sort -V | head -n 1)" = "$MINIMUM_RUST" ]
}

rust_through_rustup() {
  if have rustup; then
    timeout 300 rustup -q toolchain install stable --profile minimal -c rustfmt -c clippy && return
  fi
  have curl || return 1
  local script
  script=$(curl -fsS --proto '=https' --max-time "$RUSTUP_PATIENCE_SECONDS" https://sh.rustup.rs) || return 1
  timeout 600 sh -s -- -y -q --profile minimal -c rustfmt -c clippy <<<"$script"
}

rust_from_debian() {
  have apt-get || return 1
  if [ "$(id -u)" = 0 ] && [ -z "$APT_UPDATED" ]; then apt-get -qq update; APT_UPDATED=1; fi
  [ -n "$(apt-cache -q search --names-only '^cargo-web$')" ] || return 1
  packages rustc-web cargo-web
}

for_build() {
  have cc || packages gcc libc6-dev
  rust_is_enough && return
  say "no Rust compiler of version $MINIMUM_RUST or later: trying rustup, then Debian's"
  rust_through_rustup || rust_from_debian || fail "please install Rust $MINIMUM_RUST or later (https://rustup.rs)"
  hash -r
  rust_is_enough || fail "the Rust compiler on the PATH is older than $MINIMUM_RUST: $(rustc --version)"
}

cargo_tool() { # cargo_tool NAME VERSION: built once into .cache/tools; unoptimised, because it runs for seconds
  if [ "$("$TOOLS/bin/$1" --version 2>/dev/null | awk '{print $NF}')" != "$2" ]; then
    say "building $1 $2"
    cargo install -q --locked --debug --root "$TOOLS" "$1@$2"
  fi
}

for_fuzz() {
  if ! rustc +nightly --version >/dev/null 2>&1; then
    have rustup || fail "fuzzing needs a nightly compiler: install rustup, then rustup toolchain install nightly"
    timeout 300 rustup -q toolchain install nightly --profile minimal || fail "fuzzing needs a nightly compiler"
  fi
  have g++ || packages g++ # libFuzzer is C++
  cargo_tool cargo-fuzz "$CARGO_FUZZ"
}

namespace_tools() {
  local missing=()
  have ip || missing+=(iproute2)
  have nft || missing+=(nftables)
  [ ${#missing[@]} = 0 ] || packages "${missing[@]}"
}

clients() {
  local programs="$PWD/integration/clients" cache="$PWD/.cache"
  have python3 || packages python3 python3-venv
  if ! cmp -s "$programs/python/requirements.txt" "$cache/python/requirements.txt"; then
    say "Python clients"
    python3 -m venv "$cache/python" || { packages python3-venv; python3 -m venv "$cache/python"; }
    "$cache/python/bin/pip" -q install --disable-pip-version-check -r "$programs/python/requirements.txt"
    cp "$programs/python/requirements.txt" "$cache/python/"
  fi
  have node && have npm || packages nodejs npm
  if ! cmp -s "$programs/node/package-lock.json" "$cache/node/installed-lock.json"; then
    say "Node clients"
    mkdir -p "$cache/node"
    cp "$programs/node/package.json" "$programs/node/package-lock.json" "$cache/node/"
    (cd "$cache/node" && npm ci --silent --no-audit --no-fund)
    cp "$programs/node/package-lock.json" "$cache/node/installed-lock.json"
  fi
  have go || packages golang-go
  say "Go client and the OpenTelemetry Collector"
  (cd "$programs/go" && go build -o "$cache/goclient" .)
  (cd "$programs/collector" && go build -ldflags='-s -w' -o "$cache/collector" .)
}

for_test() {
  cargo fmt --version >/dev/null 2>&1 || rustup -q component add rustfmt 2>/dev/null || packages rustfmt-web
  cargo clippy --version >/dev/null 2>&1 || rustup -q component add clippy 2>/dev/null || packages rust-web-clippy
  namespace_tools
  clients
  cargo_tool cargo-deny "$CARGO_DENY"
  for_fuzz
}

case "${1:-}" in
  build) for_build ;;
  fuzz) for_build; for_fuzz ;;
  lab) for_build; namespace_tools ;;
  test) for_build; for_test ;;
  *) fail "usage: scripts/install.sh build | fuzz | lab | test" ;;
esac
