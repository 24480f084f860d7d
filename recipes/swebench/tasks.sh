# SWE-Bench: the rows in SWEBENCH_DATA, or mini repositories of our own.
task swebench 124 31 swebench --max-turns 30
