#!/usr/bin/env bash
# Runs the scenarios in which something breaks with many seeds and says how many broke an invariant.
# Usage: scripts/faults.sh [seeds, default 1000] [first seed, default 1]
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-1000} first=${2:-1}
cargo build --release --quiet --all-features -p wayside-sim
failed=0
for name in morning-rush tunnel roadside-outage cloud-away; do
    bad=0
    for ((seed = first; seed < first + seeds; seed++)); do
        if ! out=$(target/release/wayside-sim replay "simulations/scenarios/$name.toml" --seed "$seed"); then
            echo "$name, seed $seed: $(grep -m1 violation <<<"$out")"
            bad=$((bad + 1))
        fi
    done
    echo "$name: $seeds seeds, $bad with a violation"
    failed=$((failed + bad))
done
[ "$failed" -eq 0 ]
