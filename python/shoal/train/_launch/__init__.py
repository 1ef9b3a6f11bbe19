"""The parts of a training that each launcher of ranks needs: `Trainer`, and `shoal.ray`."""
