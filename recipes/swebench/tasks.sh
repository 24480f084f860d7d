# SWE-Bench: the rows in SWEBENCH_DATA, or mini repositories of our own.
task swebench all all swebench --max-turns 30
