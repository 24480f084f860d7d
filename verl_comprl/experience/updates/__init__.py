"""Turns an extractor's answer into changes of the bank: parsing, sanitising, planning, merging, quality checks."""
