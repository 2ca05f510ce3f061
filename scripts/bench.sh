#!/usr/bin/env bash
# Prints the figures that docs/performance.md quotes. Close other programs first: CPU times are sound on a busy machine,
# wall times are not.
#
#   scripts/bench.sh            the vehicle's feature extractor, the roadside unit's rules and the simulator as programs,
#                               then criterion's benches
#   scripts/bench.sh quick      the programs only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --locked --workspace --all-features
client=target/release/edge-client

echo "== feature extraction: CPU ms a picture, 224x224"
isas=(scalar)
for isa in avx2 avxvnni avx512vnni neon neon_dot; do
    if "$client" bench --isa "$isa" --seconds 0.1 >/dev/null 2>&1; then
        isas+=("$isa")
    fi
done
row() {
    "$client" bench --format json --seconds 3 "$@" |
        python3 -c 'import json, sys
r = json.load(sys.stdin)
print("{network:6} {engine:5} {isa:11} batch {batch:3} threads {threads}: min {cpu_ms_min:7.3f}  p10 {cpu_ms_p10:7.3f}  median {cpu_ms_median:7.3f}  wall {wall_ms_median:7.3f}  {pictures_per_s:8.1f}/s  rss {rss:.1f} MB".format(rss=r["peak_rss_bytes"] / 1e6, **r))'
}
for network in small large; do
    for isa in "${isas[@]}"; do
        row --network "$network" --isa "$isa"
    done
    row --network "$network" --batch 16
    row --network "$network" --threads 2
    row --network "$network" --engine f32
done

echo "== aggregation: 1M parameters an update, one thread"
aggregate() {
    target/release/roadside-aggregator bench --threads 1 --format json "$@" |
        python3 -c 'import json, sys
r = json.load(sys.stdin)
print("{rule:18} {updates:5} updates, {codec:9} {isa:8}: {cpu_ms:8.2f} ms CPU, {intake_cpu_ms:6.3f} ms on arrival, {bytes_per_parameter:.3f} B a parameter, rss {rss:.1f} MB, exact {exact}".format(rss=r["peak_rss_bytes"] / 1e6, **r))'
}
for codec in none fp16 fp16-diff int8 topk; do
    aggregate --updates 100 --codec "$codec"
done
aggregate --updates 200
aggregate --updates 1000 --repeat 1
for rule in krum multi-krum median trimmed-mean fedavg-clipped centered-clipping geometric-median; do
    aggregate --updates 50 --rule "$rule" --codec none
    aggregate --updates 50 --rule "$rule"
done

echo "== simulation"
simulate() { target/release/wayside-sim run "simulations/scenarios/$1.toml" --quiet --format json "${@:2}"; }
for threads in 1 2; do
    simulate speed --threads "$threads" | python3 -c 'import json, sys
r = json.load(sys.stdin)
print("speed, {threads} threads: {fits_per_s:.0f} fits/s, rss {rss:.0f} MB".format(rss=r["peak_rss_bytes"] / 1e6, **r))'
done
for name in day million; do
    simulate "$name" | python3 -c 'import json, sys
r = json.load(sys.stdin)
print("{name}: {simulated_s:.0f} s simulated in {wall_s:.1f} s, rss {rss:.0f} MB".format(rss=r["peak_rss_bytes"] / 1e6, **r))'
done
# What one more round costs: 15 rounds less 5, so that set-up and the vehicles' start are left out.
one_round() {
    python3 - "$@" <<'PY'
import json, subprocess, sys
fleet, cohort = int(sys.argv[1]), int(sys.argv[2])
def wall(merges):
    settings = [f"vehicles={fleet}", f"job.strategy.fraction_train={cohort / fleet}", f"job.schedule.merges={merges}"]
    command = ["target/release/wayside-sim", "run", "simulations/scenarios/million.toml", "--quiet", "--format", "json"]
    for setting in settings:
        command += ["-c", setting]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["wall_s"]
print(f"fleet {fleet:8}, {cohort:5} asked: {(wall(15) - wall(5)) / 10 * 1000:7.0f} ms a round")
PY
}
for fleet in 10000 100000 1000000; do
    one_round "$fleet" 1000
done
for cohort in 400 1000 2000 4000; do
    one_round 100000 "$cohort"
done

if [[ ${1:-} != quick ]]; then
    cargo bench --locked -p wayside-extractor --bench engine --bench kernels
    cargo bench --locked -p wayside-proto --bench codec
    cargo bench --locked -p wayside-domain --bench rules
fi
