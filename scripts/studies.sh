#!/usr/bin/env bash
# Prints the tables of docs/performance.md that are about rules under attack, encodings and local algorithms.
# Takes some minutes for each of the first two and longer for the third; give a name to run one: attacks, codecs, local.
set -euo pipefail
cd "$(dirname "$0")/.."
studies=("$@")
[ ${#studies[@]} -gt 0 ] || studies=(attacks codecs local)
for study in "${studies[@]}"; do
    rounds=60
    [ "$study" = attacks ] && rounds=40
    cargo run --release --quiet --all-features -p wayside-sim -- study "$study" --rounds "$rounds"
done
