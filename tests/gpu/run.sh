#!/bin/bash
# Tests on a CUDA device: finds a Python with Shoal, or installs the wheel of dist/ beside it, and runs run.py with these options.
# $PYTHON: the interpreter (default: .venv's, else python3). Without a device: a sentence and exit code 2.
set -uo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3) || { echo "tests/gpu: no Python here"; exit 2; }
if ! "$python" -c "import shoal" 2>/dev/null; then
  wheel=$(ls -t "$root"/dist/shoal-*.whl carried/shoal-*.whl 2>/dev/null | head -1)
  [ -n "$wheel" ] || { echo "tests/gpu: Shoal is not installed for $python; run ./dev build, or ./dev wheel and bring dist/"; exit 2; }
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  others=$(ls "$(dirname "$wheel")"/*.whl | grep -v '/shoal-')
  "$python" -m pip install --quiet --no-deps --no-index --target "$site" "$wheel" $others || exit 2
  export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$root/tests/bench:$root/tests${PYTHONPATH:+:$PYTHONPATH}
"$python" run.py "$@"
