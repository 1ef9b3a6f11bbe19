"""Reading and rewriting of training scripts, which are never imported: ``shoal migrate`` and ``shoal check``."""
