# shellcheck shell=bash
# Shared by check.sh and test.sh: named, timed steps that all run; the end tells which failed.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export CARGO_TERM_COLOR=never
# Debian keeps mosquitto in /usr/sbin, which is not in every user's PATH.
export PATH="$PATH:/usr/sbin:/sbin"

failed_steps=()

# step NAME COMMAND...: runs the command, tells its wall time, remembers a failure and goes on.
step() {
    local name=$1 started=$SECONDS result=ok
    shift
    echo "== $name: $*"
    "$@" || { result=FAILED; failed_steps+=("$name"); }
    echo "== $name: $result, $((SECONDS - started)) s"
}

# Everything that judges the code without running it.
static_steps() {
    step fmt cargo fmt --all --check
    step clippy cargo clippy --release --locked --workspace --all-targets --all-features -- -D warnings
    step doc env RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --all-features --no-deps
    if cargo deny --version >/dev/null 2>&1; then
        step deny cargo deny --locked --all-features check bans licenses sources
    else
        echo "== deny: skipped, cargo-deny is not installed (cargo install --locked cargo-deny)"
    fi
}

# Tells which steps failed; false if any did.
all_passed() {
    if ((${#failed_steps[@]})); then
        echo "failed steps: ${failed_steps[*]}" >&2
        return 1
    fi
}
