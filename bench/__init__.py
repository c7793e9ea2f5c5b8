"""How it is run: cases, clocks, checks and records."""
