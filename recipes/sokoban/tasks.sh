# Sokoban: 6x6, two boxes.
task sokoban 18560 128 sokoban --max-turns 30
