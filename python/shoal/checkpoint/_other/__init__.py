"""Checkpoints that other programs wrote, as a manifest."""
