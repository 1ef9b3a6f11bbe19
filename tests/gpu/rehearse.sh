#!/bin/bash
# Rehearses run.sh on the CPU as on a lent machine: a bare Python of another version, only committed files and what carry.sh has collected.
# $PYTHON: that interpreter (default: python3.12). $TORCH: the requirement to install beside it (default: that of requirements.txt).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3.12}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || { echo "rehearse.sh: no $python here; set PYTHON"; exit 2; }
torch=${TORCH:-$(grep '^torch==' requirements.txt)}
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
tests/gpu/carry.sh "$version"
"$python" -m venv "$at/venv"
"$at/venv/bin/python" -m pip install --quiet "$torch" numpy
mkdir "$at/tree"
git archive HEAD | tar -x -C "$at/tree"
cp -r tests/gpu/carried "$at/tree/tests/gpu/"
cd "$at/tree"
PYTHON=$at/venv/bin/python tests/gpu/run.sh --device cpu "$@"
