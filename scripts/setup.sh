#!/usr/bin/env bash
# Installs what a build needs and this machine lacks; with `python` or `node` as argument, what the tests
# of clients in that language need, too.
# Does nothing, quickly, where nothing is missing.
set -euo pipefail

die() {
  echo "setup: $*" >&2
  exit 1
}

command -v cargo >/dev/null || die "cargo is missing: install rustup, which brings the toolchain of rust-toolchain.toml"

missing=()
command -v make >/dev/null || missing+=(make)
command -v cmake >/dev/null || missing+=(cmake)         # zlib-ng, below Pingora, builds with it
command -v cc >/dev/null || missing+=(build-essential)  # a C compiler: mimalloc, ring and zlib-ng
if [ "${1:-}" = python ]; then
  command -v python3 >/dev/null || missing+=(python3)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
fi
if [ "${1:-}" = node ]; then
  command -v node >/dev/null || missing+=(nodejs)
  command -v npm >/dev/null || missing+=(npm)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

need="please install the package(s): ${missing[*]}"
command -v apt-get >/dev/null || die "there is no apt-get here; $need"
if [ "$(id -u)" = 0 ]; then
  as_root=()
elif command -v sudo >/dev/null; then
  as_root=(sudo)
else
  die "not root, and there is no sudo; $need"
fi

echo "setup: installing ${missing[*]}"
${as_root[@]+"${as_root[@]}"} apt-get update -qq || die "apt-get update failed; $need"
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" || die "apt-get install failed; $need"
