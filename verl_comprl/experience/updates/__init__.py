"""From an extractor's answer to changes of the bank: parsing, sanitising, planning, merging, quality."""
