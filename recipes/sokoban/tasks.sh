# Sokoban: 6x6, two boxes.
task sokoban 2320 128 sokoban --max-turns 30
