# MiniHack Room (Ultimate-5x5): find the staircase in the dark, a monster and a hidden trap about, in few turns.
task small-room 240 32 minihack --variant room-ultimate --max-turns 8
