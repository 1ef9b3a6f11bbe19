"""The rules of operators: dimensions that are split alike, and sums over parts."""

from shoal.spmd._rules import arithmetic, indexing, layers, views  # noqa: F401  they register rules
