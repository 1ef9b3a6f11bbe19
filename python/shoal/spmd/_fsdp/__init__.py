"""SpmdFullyShardedDataParallel: marks, or units of ``shoal.fsdp``'s engine."""
