# MiniHack River with one cell of water: push a boulder into it, cross, take the staircase on the far side.
task river 2320 128 minihack --variant river-ford --max-turns 40
