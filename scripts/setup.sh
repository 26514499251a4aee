#!/usr/bin/env bash
# Installs what a build needs and this machine lacks; with `python` or `node` as argument, what the tests of clients in that
# language need, too; with `npm`, what the web demo needs.
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
if [ "${1:-}" = node ] || [ "${1:-}" = npm ]; then
  command -v node >/dev/null || missing+=(nodejs)
  command -v npm >/dev/null || missing+=(npm)
fi
# Where the tests look for it: clients/js/test/browser/chromium.ts.
if [ "${1:-}" = node ] && [ -z "${CHROMIUM:-}" ]; then
  command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
    || missing+=(chromium)
fi

check_node() {
  case "${1:-}" in node | npm) ;; *) return 0 ;; esac
  local version
  version=$(node --version) || die "node does not run"
  [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] \
    || die "node is $version, and 20 or later is needed: install one from https://nodejs.org, which brings npm"
}

if [ ${#missing[@]} -eq 0 ]; then
  check_node "$@"
  exit 0
fi

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
check_node "$@"
