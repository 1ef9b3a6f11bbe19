#!/bin/bash
# Runs the example as a user would, alone and on a running cluster. The output must be as its comments promise.
set -uo pipefail
SHOAL_HOME=$(mktemp -d /tmp/shoal-counter.XXXXXX)
export SHOAL_HOME
unset SHOAL_ADDRESS
trap '"$SHOAL_BINARY" stop --all >/dev/null 2>&1; rm -rf "$SHOAL_HOME"' EXIT

check() {
  local out=$1 wanted
  for wanted in "rank 0 counts 105" "rank 3 counts 120" "as intended: error[InvalidArgument]: a counter is not divided by zero" \
    "in: method divide, actor Counter(" "rank 1" "hint: pass another number" "as intended: error[Unavailable/ActorDied]: actor Counter died" \
    "rank 3" "the others have 330"; do
    grep -qF -- "$wanted" <<<"$out" || { printf 'missing: %s\nin:\n%s\n' "$wanted" "$out"; exit 1; }
  done
}

out=$("$COUNTER") || { echo "it failed: $out"; exit 1; }
check "$out"

# Like `bazel run`: the command is neither named nor on PATH, but built in the same tree.
out=$(env -u SHOAL_BINARY PATH=/usr/bin:/bin "$COUNTER" 2>&1) || { echo "it found no command: $out"; exit 1; }
check "$out"

"$SHOAL_BINARY" start --head --port 0 --num-cpus 2 >/dev/null || exit 1
out=$(SHOAL_ADDRESS=auto "$COUNTER") || { echo "it failed on a running cluster: $out"; exit 1; }
check "$out"
grep -q SUCCEEDED <<<"$("$SHOAL_BINARY" list jobs)" || { echo "the job did not end well:"; "$SHOAL_BINARY" list jobs; exit 1; }

# Submitted as a job, it is a driver, not a worker.
out=$("$SHOAL_BINARY" submit -- "$PWD/$COUNTER" 2>&1) || { echo "it failed as a job: $out"; exit 1; }
check "$out"
"$SHOAL_BINARY" stop --all >/dev/null

# Without the command there is no cluster; an error must report that.
out=$(SHOAL_BINARY=/nowhere/shoal "$COUNTER" 2>&1) && { echo "it ran without a cluster"; exit 1; }
grep -q "set SHOAL_BINARY" <<<"$out" || { echo "no hint: $out"; exit 1; }
