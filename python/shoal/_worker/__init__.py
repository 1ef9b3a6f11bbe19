"""The side of a worker: it takes calls, runs them on its actor or as functions, answers them, and ends."""
