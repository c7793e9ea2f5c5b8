"""What is run: ops, their providers, their work and their workloads; no clock, no file, no device list."""
