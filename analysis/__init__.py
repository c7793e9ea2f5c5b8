"""What it means: records in, rates, classes, tables and figures out; imports neither torch nor triton."""
