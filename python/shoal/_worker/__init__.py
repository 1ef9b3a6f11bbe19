"""The worker's side of calls: it takes them, runs them on its actor or as functions, answers them, and ends."""
