# MiniHack KeyRoom: find the key in the dark, unlock the door, take the staircase behind it.
task keyroom 2320 128 minihack --variant keyroom --max-turns 30
