#!/bin/bash
# Runs the example as a user would, on a private cluster.
set -uo pipefail
SHOAL_HOME=$(mktemp -d /tmp/shoal-server.XXXXXX)
export SHOAL_HOME TMPDIR=$SHOAL_HOME SHOAL_RUN_FOLDER=$SHOAL_HOME/run
unset SHOAL_ADDRESS
trap 'rm -rf "$SHOAL_HOME"' EXIT

out=$("$PARAMETER_SERVER") || { echo "it failed: $out"; exit 1; }
for wanted in "step 0: gradient" "step 40: gradient" "the server's process is gone, and started again" "y = 3.00 a + -2.00 b + 0.50"; do
  grep -qF -- "$wanted" <<<"$out" || { printf 'missing: %s\nin:\n%s\n' "$wanted" "$out"; exit 1; }
done
shown=$("$SHOAL_BINARY" show "$SHOAL_RUN_FOLDER")
for wanted in "the run ended in order after 60 steps" "gradient "; do
  grep -qF -- "$wanted" <<<"$shown" || { printf 'missing: %s\nin:\n%s\n' "$wanted" "$shown"; exit 1; }
done
[ -z "$(ls "$SHOAL_HOME" | grep weights-)" ] || { echo "its checkpoint was left behind"; exit 1; }
