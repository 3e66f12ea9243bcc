#!/bin/sh
# The train loop on a GPU: losses equal to the CPU's, tokens/s beside a plain loop. Five minutes at most.
# Options: --small and --device cpu to try it without a GPU; PYTHON names the interpreter.
cd "$(dirname "$0")/.." || exit 2
PYTHONPATH=. exec timeout 300 "${PYTHON:-python3}" -m benchmarks.gpu "$@"
