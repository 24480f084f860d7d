# WebShop: the catalogue named by WEBSHOP_DATA, or a synthetic one.
task webshop all 128 webshop --max-turns 30
