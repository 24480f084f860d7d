# WebShop: the catalogue named by WEBSHOP_DATA.
needs WEBSHOP_DATA "let WEBSHOP_DATA name the folder with upstream's items_shuffle_1000.json and items_ins_v2_1000.json (docs/environments/webshop.md)"
task webshop 2048 128 webshop --max-turns 30
