"""WebShop: buy a product that an instruction describes, on the text pages of a shop."""
