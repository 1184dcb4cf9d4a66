#!/usr/bin/env bash
# What `cargo xtask test` wants beyond Rust, a C compiler and Python: the guest toolchain, from Debian's own packages.
set -euo pipefail
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
  missing=()
  for package in rustc-web cargo-web rust-web-src lld-19; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq
    apt-get install -y -qq "${missing[@]}"
  fi
fi
