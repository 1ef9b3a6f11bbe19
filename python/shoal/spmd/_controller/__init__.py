"""A program as controller of ranks: recording of its operators, batches to the ranks, and their execution by the ranks."""
