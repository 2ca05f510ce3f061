#!/usr/bin/env bash
# The whole gate: installs what a bare Debian machine lacks, checks the code, runs every test.
# The last line is the sum over all test binaries: `N passed, N failed`. Exits non-zero if any step failed.
set -euo pipefail
# shellcheck source=scripts/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# Programs that the build and the tests start, and the Debian packages that hold them.
needed=(cc:gcc cc:libc6-dev mosquitto:mosquitto)

install_missing() {
    local entry packages=() root=()
    for entry in "${needed[@]}"; do
        command -v "${entry%%:*}" >/dev/null || packages+=("${entry#*:}")
    done
    ((${#packages[@]})) || return 0
    local by_hand="install by hand and run again: apt-get install ${packages[*]}"
    if ! command -v apt-get >/dev/null; then
        echo "missing: ${packages[*]}, and there is no apt-get here; $by_hand (or the like)" >&2
        return 1
    fi
    if [[ $(id -u) -ne 0 ]]; then
        if ! sudo -n true 2>/dev/null; then
            echo "missing: ${packages[*]}, and installing needs root or sudo without a password; $by_hand" >&2
            return 1
        fi
        root=(sudo -n)
    fi
    # The broker's package would start a service on port 1883, now and at every boot. The tests start their own on free
    # loopback ports, so the service is kept from starting while the package is installed, and disabled.
    local policy=/usr/sbin/policy-rc.d ours=
    if [[ ! -e $policy ]]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' | "${root[@]}" install -m 755 /dev/stdin "$policy"
    fi
    local result=0
    "${root[@]}" apt-get update -q &&
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}" ||
        result=$?
    if [[ -n $ours ]]; then
        "${root[@]}" rm -f "$policy"
    fi
    if [[ " ${packages[*]} " == *" mosquitto "* ]] && command -v systemctl >/dev/null; then
        "${root[@]}" systemctl disable mosquitto.service || true
    fi
    ((result == 0)) || echo "could not install ${packages[*]}; $by_hand" >&2
    return "$result"
}

if ! command -v cargo >/dev/null; then
    echo "missing: cargo; install Rust 1.95 or newer and run again" >&2
    exit 1
fi
step tools install_missing

log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_tests() {
    cargo test --release --locked --workspace --all-features --no-fail-fast 2>&1 | tee "$log"
}

# The kernels for ARM, where there is a compiler for it. It is large: only continuous integration installs it unasked.
run_arm() {
    if [[ ${WAYSIDE_ARM:-} != required ]] && ! scripts/arm.sh ready; then
        echo "== arm: skipped, no compiler or emulator for aarch64 (WAYSIDE_ARM=required installs them)"
        return 0
    fi
    scripts/arm.sh test 2>&1 | tee -a "$log"
}

static_steps
step test run_tests
step arm run_arm

result=0
all_passed || result=1
awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i - 1); if ($i ~ /^failed/) failed += $(i - 1) } }
     END { printf "%d passed, %d failed\n", passed, failed }' "$log"
exit "$result"
