# MiniHack Room (Ultimate-5x5): dark, a monster, a hidden trap.
task room 2320 128 minihack --variant room-ultimate --max-turns 30
