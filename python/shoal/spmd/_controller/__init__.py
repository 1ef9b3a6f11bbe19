"""One controller: recording of operators, batches to the ranks, and their execution there."""
