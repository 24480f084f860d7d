# SWE-Bench: the rows in SWEBENCH_DATA, or small repositories that come with this package.
task swebench 124 31 swebench --max-turns 30
