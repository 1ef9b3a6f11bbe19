"""The driver of a training: it serves the workers' calls, and decides about their number."""
