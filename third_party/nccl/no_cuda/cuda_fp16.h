// Empty: NCCL's headers include it, and name nothing of it.
