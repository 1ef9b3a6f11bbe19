"""``shoal chaos``: faults in a running elastic training (``python -m shoal.train._chaos``)."""
