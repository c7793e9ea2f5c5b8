"""The report people open: one page from any records, its text made here, its figures drawn in the browser."""
