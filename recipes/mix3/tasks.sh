# Three tasks, one bank: MiniHack Room, WebShop, ALFWorld.
task room 2048 128 minihack --variant room-ultimate --max-turns 30
task webshop all 128 webshop --max-turns 30
task alfworld 1466 134 alfworld --max-turns 40
