#!/usr/bin/env bash
# What `cargo xtask test` wants beyond Rust, a C compiler and Python, from Debian's own packages: the guest toolchains
# for Rust and C, Python's virtual environments, Node, a browser and a
# registry for the clients.
set -euo pipefail
wanted=()
python3 -c 'import ensurepip' 2>/dev/null || wanted+=(python3-venv)
command -v node >/dev/null && command -v npm >/dev/null || wanted+=(nodejs npm)
if ! rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown; then
  wanted+=(rustc-web cargo-web rust-web-src lld-19)
fi
command -v clang-19 >/dev/null && command -v wasm-ld-19 >/dev/null || wanted+=(clang-19 lld-19)
command -v chromium >/dev/null && command -v chromedriver >/dev/null || wanted+=(chromium chromium-driver)
command -v docker-registry >/dev/null || wanted+=(docker-registry)
missing=()
for package in "${wanted[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  apt-get install -y -qq "${missing[@]}"
fi
