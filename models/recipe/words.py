"""The words of the chat tasks: short, common, few enough that each becomes one token.

Data only. Order matters: generated tasks index into these tuples, so a change here changes the
training data.
"""

WORDS = (
    "apple", "ant", "arm", "bag", "ball", "band", "bank", "bear", "bed", "bee", "bell", "bird",
    "boat", "bone", "book", "boot", "box", "bread", "brick", "bus", "cake", "camp", "card",
    "cat", "chair", "city", "clock", "cloud", "coat", "coin", "corn", "cow", "cup", "dance",
    "day", "desk", "dog", "door", "duck", "ear", "earth", "egg", "eye", "farm", "fire", "fish",
    "flag", "flower", "fog", "food", "fork", "fox", "frog", "game", "gate", "goat", "gold",
    "grass", "hand", "hat", "hill", "home", "horse", "house", "ice", "ink", "iron", "island",
    "key", "king", "knife", "lake", "land", "leaf", "lemon", "lion", "map", "milk", "moon",
    "mouse", "night", "nose", "oak", "ocean", "orange", "paper", "park", "pear", "pen", "pig",
    "pipe", "plant", "queen", "rain", "ring", "river", "road", "rock", "roof", "rope", "rose",
    "salt", "sand", "sea", "seed", "ship", "shoe", "silver", "sky", "snow", "song", "soup",
    "star", "stone", "sun", "table", "tea", "tiger", "tree", "van", "wall", "water", "wheel",
    "wind", "window", "wolf", "wood", "yard", "year", "zebra",
)  # fmt: skip
NAMES = (
    "Anna", "Ben", "Carl", "Dora", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jack", "Karen",
    "Leo", "Maria", "Nina", "Oscar", "Paul", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip
CITIES = (
    "Athens", "Berlin", "Cairo", "Delhi", "Geneva", "Havana", "Lima", "London", "Madrid",
    "Oslo", "Paris", "Prague", "Quito", "Rome", "Seoul", "Tokyo", "Turin", "Vienna", "Warsaw",
    "Zurich",
)  # fmt: skip
COLORS = (
    "red", "green", "blue", "black", "white", "yellow", "pink", "gray", "brown", "purple",
)  # fmt: skip
JOBS = (
    "baker", "doctor", "driver", "farmer", "nurse", "painter", "pilot", "singer", "teacher",
    "writer",
)  # fmt: skip
