# Six tasks, one bank: as mix3, and MiniHack Maze, MiniHack KeyRoom, Sokoban.
needs WEBSHOP_DATA "let WEBSHOP_DATA name the folder with upstream's items_shuffle_1000.json and items_ins_v2_1000.json (docs/environments/webshop.md)"
needs ALFWORLD_DATA "alfworld-download, or let ALFWORLD_DATA name the folder"
task room 2048 128 minihack --variant room-ultimate --max-turns 30
task webshop 2048 128 webshop --max-turns 30
task alfworld 1466 134 alfworld --max-turns 40
task maze 2048 128 minihack --variant maze --max-turns 30
task keyroom 2048 128 minihack --variant keyroom --max-turns 30
task sokoban 2048 128 sokoban --max-turns 30
