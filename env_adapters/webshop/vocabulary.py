"""Vocabulary of the synthetic WebShop catalogue.

Owns the kinds of product and the texts about them. ``catalogue`` combines them into products.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product.

    Attributes:
        title: Name of the kind in product titles.
        query: Name of the kind in instructions; also the search query under which its products are filed.
        use: Purpose of such a product.
        low: Lowest price in dollars.
        high: Highest price.
    """

    title: str
    query: str
    use: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Department:
    """Kinds of product that share properties.

    Attributes:
        category: One of upstream's five categories.
        path: Names of the categories above the kinds.
        attributes: Properties that a product may have.
        options: Values by option name. The last option determines the price: later values cost more.
        kinds: The kinds.
    """

    category: str
    path: tuple[str, ...]
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    kinds: tuple[Kind, ...]


def _department(category: str, path: str, attributes: str, options: dict[str, str], kinds: str) -> Department:
    rows = [[cell.strip() for cell in row.split("|")] for row in kinds.strip().splitlines()]
    return Department(
        category,
        tuple(path.split(" > ")),
        tuple(attributes.split(", ")),
        {name: tuple(values.split(", ")) for name, values in options.items()},
        tuple(Kind(title, query, use, *map(int, prices.split("-"))) for title, query, use, prices in rows),
    )


_CLOTH_COLORS = "black, white, navy blue, heather grey, burgundy, forest green, dusty rose, teal, mustard yellow, lilac"
_HOME_COLORS = "ivory, charcoal, sage green, terracotta, navy blue, beige, dusty rose, slate blue, chocolate brown"
_TECH_COLORS = "black, white, silver, midnight blue, rose gold, red, mint green"
_SIZES = "x-small, small, medium, large, x-large, xx-large, 3x-large"
_SHOE_ATTRIBUTES = (
    "arch support, rubber sole, non slip, memory foam, breathable mesh, vegan leather, lace up, wide toe box"
)
_CLOTH_ATTRIBUTES = (
    "machine wash, quick drying, tumble dry, wrinkle resistant, organic cotton, lightweight, stretch fabric, "
    "moisture wicking, long sleeve, classic fit"
)
_SNACK_ATTRIBUTES = (
    "gluten free, non gmo, low sugar, dairy free, high fiber, plant based, no artificial colors, kosher certified"
)

DEPARTMENTS: tuple[Department, ...] = (
    _department(
        "fashion",
        "Clothing, Shoes & Jewelry > Women > Shoes",
        _SHOE_ATTRIBUTES,
        {"color": _CLOTH_COLORS, "size": "6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10"},
        """
        Women's Running Shoes | women's running shoes | runs on road and track   | 35-110
        Women's Ankle Boots   | women's ankle boots   | cool days in town        | 40-130
        Women's Slippers      | women's slippers      | slow mornings at home    | 12-40
        Women's Hiking Sandals| women's hiking sandals| warm trails and rivers   | 25-80
        """,
    ),
    _department(
        "fashion",
        "Clothing, Shoes & Jewelry > Men > Shoes",
        _SHOE_ATTRIBUTES,
        {"color": _CLOTH_COLORS, "size": "8, 8.5, 9, 9.5, 10, 10.5, 11, 12, 13"},
        """
        Men's Walking Shoes   | men's walking shoes   | long days on your feet   | 35-110
        Men's Hiking Boots    | men's hiking boots    | rough ground in the rain | 55-160
        Men's Loafers         | men's loafers         | the office and after     | 40-120
        """,
    ),
    _department(
        "fashion",
        "Clothing, Shoes & Jewelry > Women > Clothing",
        _CLOTH_ATTRIBUTES,
        {"color": _CLOTH_COLORS, "size": _SIZES},
        """
        Women's Cardigan      | women's cardigans     | layering in spring       | 20-70
        Women's Yoga Top      | women's yoga tops     | the mat and the gym      | 15-45
        Women's Raincoat      | women's raincoats     | wet walks to work        | 30-110
        Women's Pajama Set    | women's pajama sets   | a good night's rest      | 18-60
        """,
    ),
    _department(
        "fashion",
        "Clothing, Shoes & Jewelry > Men > Clothing",
        _CLOTH_ATTRIBUTES,
        {"color": _CLOTH_COLORS, "fit type": "regular, big and tall", "size": _SIZES},
        """
        Men's Dress Shirt     | men's dress shirts    | meetings and weddings    | 18-70
        Men's Polo Shirt      | men's polo shirts     | weekends on the green    | 15-50
        Men's Hoodie          | men's hoodies         | evenings by the fire     | 22-75
        Men's Fleece Jacket   | men's fleece jackets  | frost in the morning     | 28-100
        """,
    ),
    _department(
        "beauty",
        "Beauty & Personal Care > Skin Care > Face",
        "fragrance free, cruelty free, paraben free, dermatologist tested, sensitive skin, fast absorbing, oil free, "
        "hyaluronic acid",
        {"scent": "unscented, lavender, cucumber, green tea, rose", "size": "1.7 ounce, 3.4 ounce, 6 ounce, 8 ounce"},
        """
        Face Moisturizer      | face moisturizers     | dry winter air           | 9-45
        Face Cleanser         | face cleansers        | the end of a long day    | 7-30
        Face Serum            | face serums           | the night before a party | 12-60
        Face Sunscreen        | face sunscreens       | noon on the beach        | 9-35
        """,
    ),
    _department(
        "beauty",
        "Beauty & Personal Care > Hair Care > Wash",
        "sulfate free, paraben free, cruelty free, color safe, dry hair, curly hair, salon grade, tea tree oil",
        {"scent": "coconut, lavender, eucalyptus, vanilla, citrus", "size": "8 ounce, 12 ounce, 16 ounce, 33 ounce"},
        """
        Hair Shampoo          | hair shampoos         | washing every day        | 7-32
        Hair Conditioner      | hair conditioners     | tangles after a swim     | 7-32
        Hair Mask             | hair masks            | ends that need some care | 10-40
        """,
    ),
    _department(
        "electronics",
        "Electronics > Audio > Portable",
        "fast charging, noise cancelling, water resistant, easy to use, deep bass, hands free, long battery life, "
        "quick pairing",
        {"color": _TECH_COLORS, "bundle": "single, with case, with case and cable"},
        """
        Bluetooth Speaker     | bluetooth speakers    | music by the lake        | 18-120
        Wireless Earbuds      | wireless earbuds      | calls on the train       | 20-150
        Headphones            | headphones            | deep work in loud places | 25-190
        Pocket Radio          | pocket radios         | the news in the garden   | 14-60
        """,
    ),
    _department(
        "electronics",
        "Electronics > Accessories > Power",
        "fast charging, aluminum alloy, tangle free, overheat protection, heavy duty, plug and play, travel size, "
        "high speed",
        {"color": _TECH_COLORS, "size": "3 feet, 6 feet, 10 feet, 15 feet"},
        """
        USB C Charging Cable  | usb c charging cables | the desk and the car     | 6-28
        Extension Cord        | extension cords       | corners without a socket | 9-35
        HDMI Cable            | hdmi cables           | films on the big screen  | 7-40
        """,
    ),
    _department(
        "garden",
        "Home & Kitchen > Bedding > Linen",
        "machine washable, fade resistant, hypoallergenic, easy care, soft touch, double stitched, breathable, "
        "oeko tex certified",
        {"color": _HOME_COLORS, "size": "twin, full, queen, king, california king"},
        """
        Bed Sheet Set         | bed sheet sets        | nights that run warm     | 22-95
        Duvet Cover           | duvet covers          | a room with a new face   | 25-110
        Quilt                 | quilts                | the cold half of a year  | 35-150
        Mattress Protector    | mattress protectors   | spills and small guests  | 18-70
        """,
    ),
    _department(
        "garden",
        "Home & Kitchen > Decor > Living Room",
        "easy assembly, space saving, handmade, easy to clean, solid wood, non toxic, stackable, rust proof",
        {"color": _HOME_COLORS, "size": "small, medium, large, set of 2, set of 3"},
        """
        Storage Basket        | storage baskets       | toys and blankets        | 12-55
        Side Table            | side tables           | a cup beside the sofa    | 30-140
        Floor Lamp            | floor lamps           | a corner to read in      | 28-130
        Wall Shelf            | wall shelves          | the books on the floor   | 16-80
        Pillowcase            | pillowcases           | a sofa that looks bare   | 8-35
        """,
    ),
    _department(
        "grocery",
        "Grocery & Gourmet Food > Snacks > Bars & Nuts",
        _SNACK_ATTRIBUTES,
        {
            "flavor name": "dark chocolate, peanut butter, sea salt, maple, blueberry, honey almond",
            "size": "pack of 1, pack of 6, pack of 12, pack of 24",
        },
        """
        Granola Bars          | granola bars          | hikes and school bags    | 5-30
        Trail Mix             | trail mixes           | the long road home       | 6-28
        Roasted Nuts          | roasted nuts          | a plate between friends  | 6-32
        Rice Crackers         | rice crackers         | soups and dips           | 4-20
        """,
    ),
    _department(
        "grocery",
        "Grocery & Gourmet Food > Beverages > Coffee & Tea",
        "caffeine free, fair trade, usda organic, non gmo, single origin, low acid, hand picked, resealable bag",
        {
            "flavor name": "original, ginger lemon, vanilla, cinnamon, hazelnut, earl grey",
            "size": "4 ounce, 8 ounce, 1 pound, 2 pound",
        },
        """
        Loose Leaf Tea        | loose leaf teas       | a quiet afternoon        | 6-30
        Ground Coffee         | ground coffees        | the first hour awake     | 7-34
        Cocoa Powder          | cocoa powders         | snow on the window       | 6-25
        """,
    ),
)

_BRAND_NAMES = """
Alderwick Brennova Caldmere Dunhollow Elmarra Fenwater Gorsefield Harrowin Islemoor Junivale Kestrova Larkstead Mirewell
Nordhaven Oakmarsh Pellinor Quarrystone Ravenholt Silvermere Thornaby Umberfell Vallenor Westmarrow Yarrowby Zephyrine
Ashgrove Birchlane Coppervale Driftmoor Eastwold Foxley Greyhollow Hazelwyn Ironbrook
"""
BRANDS = tuple(_BRAND_NAMES.split())

_MODEL_NAMES = """
Aria Basin Cedar Delta Ember Fjord Glade Haven Indus Jetty Kite Lumen Meadow Nimbus Orbit Prairie Quill Ridge Summit
Tundra Umbra Vista Willow Xenon Yonder Zenith Arbor Breeze Comet Dune Echo Flint Grove Harbor
"""
MODELS = tuple(_MODEL_NAMES.split())

REASONS = (
    "what our customers ask for first",
    "tested for a year before we sold it",
    "because small things matter every day",
    "checked by hand on every piece",
    "so that it serves you for years",
    "a detail that you will notice at once",
    "made to our own strict standard",
    "the reason why many buy it again",
)

CLOSINGS = (
    "It ships in plain cardboard without plastic.",
    "Write to us if anything is wrong and we will replace it.",
    "It makes a thoughtful gift for family and friends.",
    "Our small team answers every question within a day.",
    "You may return it within thirty days.",
    "It was designed in a workshop by the sea.",
)

REVIEWS: dict[int, tuple[tuple[str, str], ...]] = {
    5: (
        ("Better than expected", "Arrived early and looks just like the picture. I have ordered a second one."),
        ("Great value", "I compared many and this is the best for the money."),
    ),
    4: (
        ("Good", "Does what it should. The box was dented, the content was fine."),
        ("Happy with it", "Nice quality, though it took me a day to get used to it."),
    ),
    3: (
        ("It is fine", "Neither great nor bad. It works for now."),
        ("Average", "The color differs a little from the picture."),
    ),
    2: (("Not for me", "It feels cheaper than I had hoped."),),
    1: (("Sent it back", "It broke in the first week, but the refund was quick."),),
}
"""Titles and texts of reviews, by number of stars."""
