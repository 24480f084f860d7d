# MiniHack Maze: a small unexplored maze, which random play does not leave by luck as it does Room.
task maze 2320 128 minihack --variant maze --max-turns 30
