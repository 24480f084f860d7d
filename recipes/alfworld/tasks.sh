# ALFWorld: the games in ALFWORLD_DATA.
needs ALFWORLD_DATA "alfworld-download, or let ALFWORLD_DATA name the folder"
task alfworld 1466 134 alfworld --max-turns 40
