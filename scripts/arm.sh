#!/usr/bin/env bash
# Proves on aarch64 what must be the same everywhere: builds the tests of extractor
# and rules for it and runs them under emulation.
#
#   scripts/arm.sh [test]       test the int8 engine (NEON, with and without the dot product), sums and rules
#   scripts/arm.sh ready        say, by the exit status, whether compiler and emulator are there
#   scripts/arm.sh client       build the whole vehicle program, into target/cross/aarch64-unknown-linux-gnu/dist
#
# It uses the rustup toolchain if that has the target (rustup target add aarch64-unknown-linux-gnu), else Debian's own
# compiler and its standard library for arm64, which it installs where it may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-unknown-linux-gnu
missing=()
need() { command -v "$1" >/dev/null || missing+=("${@:2}"); }
need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
need qemu-aarch64-static qemu-user-static
path=$PATH
compiler=
if [[ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]]; then
    # Debian's cargo must find Debian's rustc.
    path=/usr/bin:/bin
    compiler=/usr/bin/rustc
    if [[ ! -x /usr/bin/cargo || ! -x $compiler ]] ||
        [[ ! -d "$("$compiler" --print sysroot)/lib/rustlib/$target" ]]; then
        missing+=(rustc-web cargo-web libstd-rust-web-dev:arm64)
    fi
fi

if [[ ${1:-} == ready ]]; then
    exit $((${#missing[@]} > 0))
fi
if ((${#missing[@]})); then
    root=()
    if [[ $(id -u) -ne 0 ]]; then
        root=(sudo -n)
    fi
    if ! command -v apt-get >/dev/null || ! "${root[@]}" true 2>/dev/null; then
        echo "missing: ${missing[*]}; install them (Debian: dpkg --add-architecture arm64 first) and run again" >&2
        exit 1
    fi
    "${root[@]}" dpkg --add-architecture arm64
    "${root[@]}" apt-get update -q
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

export PATH=$path
if [[ -n $compiler ]]; then
    export RUSTC=$compiler
fi
# No -L for the emulator: it would mix the loader of one C library with another C library.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=qemu-aarch64-static
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar

# A folder of its own keeps two compilers from rebuilding each other's output.
common=(--locked --target "$target" --target-dir target/cross)
case ${1:-test} in
client)
    cargo build --profile dist -p edge-client "${common[@]}"
    ls -l "target/cross/$target/dist/edge-client"
    ;;
test)
    cargo test --release -p wayside-extractor --tests "${common[@]}"
    # There is one form of these kernels on aarch64, so what compares several is left out.
    cargo test --release -p wayside-domain --lib --test rules "${common[@]}" -- --skip threads_and_cpu
    ;;
*)
    echo "usage: scripts/arm.sh [ready|test|client]" >&2
    exit 2
    ;;
esac
