"""From kernels to serving: step times, load, memory and cost, checked against real engines."""
