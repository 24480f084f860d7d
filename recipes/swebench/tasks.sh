# SWE-Bench: the rows in SWEBENCH_DATA, all of them for training and for evaluation, each in its image.
needs SWEBENCH_DATA "let SWEBENCH_DATA name the file that env_adapters.swebench.select writes (docs/environments/swebench.md)"
if [ -n "${smoke:-}" ] || [ -z "${SWEBENCH_DATA:-}" ]; then
  task swebench 124 31 swebench --max-turns 30
else
  task swebench all all swebench --max-turns 30 -o backend=docker -o held_out=0 -o timeout=1800 -o test_timeout=1800
fi
