#!/bin/bash
# Runs the example as a user would, on a private cluster and on one whose functions run on another node than the program.
set -uo pipefail
SHOAL_HOME=$(mktemp -d /tmp/shoal-search.XXXXXX)
export SHOAL_HOME
unset SHOAL_ADDRESS
trap 'env -u SHOAL_ADDRESS "$SHOAL_BINARY" stop >/dev/null 2>&1; rm -rf "$SHOAL_HOME"' EXIT

finds() {
  local out wanted="of 15 finds with 387 steps the longest: 27 takes 111 steps"
  out=$("$SEARCH") || { echo "$1: it failed: $out"; exit 1; }
  grep -qF -- "$wanted" <<<"$out" || { printf '%s: missing: %s\nin:\n%s\n' "$1" "$wanted" "$out"; exit 1; }
}

finds "alone"
said=$("$SHOAL_BINARY" start --head --port 0 --num-cpus 0) || { echo "no head: $said"; exit 1; }
"$SHOAL_BINARY" start --address "$(sed -n 's/^Shoal runs at \([^ ]*\) .*/\1/p' <<<"$said")" --num-cpus 4 || exit 1
SHOAL_ADDRESS=auto finds "two nodes"
"$SHOAL_BINARY" stop || exit 1
