"""Runs the benchmarks: `python -m tests.bench` (bench.py)."""

from tests.bench.bench import main

main()
