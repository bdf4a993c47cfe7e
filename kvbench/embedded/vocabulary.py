"""The closed vocabulary that pages are drawn with: one tile shows one token of the language model.

Every word below is one SmolLM2 token with its leading space; digits and marks are one token without. The
vision tower classifies a tile over this list, and the projector replaces the class by the frozen embedding of
its token. Class 0 is the blank tile (read as a line break), class 1 the filled part of a bar.
"""

from __future__ import annotations

from functools import cache

BLANK, BAR = 0, 1
#: What the language model reads for a blank tile and for a bar tile.
BLANK_TOKEN, BAR_TOKEN = "\n", "="


def _split(words: str) -> list[str]:
    return words.split()


ADJECTIVES = _split(
    "Green Red Blue White Black Old New North South East West Upper Lower First Second Third Main Royal "
    "Grand Little Golden Silver Central Local Public Winter Spring Night Early Late High Low Long Short "
    "Small Large Big Young Free Basic Final Annual Daily Net Gross Prime Extra Inner Outer Left Right "
    "Cold Hot Dark Light Wild Quick Smart Modern"
)
NOUNS = _split(
    "Tax Bill Loan Cost Price Credit Debt Budget Stock Order Count Limit Score Grade Level Index Weight "
    "Height Depth Length Speed Volume Rate Power Energy Water Gas Heat Phone Floor Gate Door Unit Case "
    "File Page Part Income Loss License Storage Repair Labor Travel Meal Balance Account Policy Claim "
    "Output Target"
)
ITEMS = _split(
    "Tea Bread Milk Rice Salt Sugar Butter Cheese Apple Lemon Orange Corn Beans Fish Beef Eggs Juice Soup "
    "Salad Honey Paper Pen Book Lamp Chair Hat Coat Glass Cup Plate Coffee Potato Garlic Pepper Brush "
    "Paint Wine Beer"
)
PLACES = _split(
    "Market Hotel Bank Museum Library School Station Church Theater Hall Tower Bridge Shop Store Clinic "
    "Studio Gallery Office Court Square Garden Park Harbor Airport Cinema Farm Factory College Palace "
    "Castle Temple Beach Island Plaza Inn Pub Gym Pool Zoo Mill Chapel"
)
NAMES = _split(
    "Anna Peter Maria James Lucy Henry John Mary David Sarah Robert Emma Thomas Laura George Alice Paul "
    "Julia Frank Helen Simon Oscar Clara Martin Rose Daniel Nina Victor Jane Kevin Diana Edward Linda "
    "Brian Karen Samuel Rachel Adam Eva Leo Carl Ellen Philip Jacob Arthur Walter Albert Oliver Emily "
    "Charles William Richard Michael Joseph Susan Lisa Mark Luke Ryan Jason Amy Kate Ruth"
)
CITIES = _split(
    "Paris London Rome Berlin Madrid Dublin Oslo Boston Tokyo Delhi Cairo Lima Vienna Prague Athens "
    "Lisbon Moscow Sydney Dallas Denver Miami Chicago Seattle Toronto Munich Milan Venice Geneva Warsaw "
    "Beijing Seoul Dubai Havana Austin Oxford Phoenix Detroit Atlanta"
)
ANIMALS = _split(
    "Lion Tiger Eagle Horse Wolf Bear Fox Deer Rabbit Snake Shark Whale Dog Cat Bird Duck Sheep Cow Pig "
    "Mouse Frog Owl Hawk Bee Ant Swan Crow Monkey"
)
#: Words that are one token without the leading space too, so that an answer may begin with them.
PEOPLE = _split(
    "Anna Peter Maria James Henry John Mary David Sarah Robert Thomas George Alice Paul Frank Simon "
    "Martin Rose Daniel Victor Jane Edward Samuel Adam Carl Jacob Arthur Emily Charles William Richard "
    "Michael Joseph Mark Luke"
)
PLAIN = [*PEOPLE, *_split("Paris London Rome Boston Chicago Oxford Dog Cat Bird Bee Ant")]
MONTHS = _split("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
DAYS = _split("Monday Tuesday Friday Sunday")
HEADS = _split(
    "Form Table Notice Chart Report Total Date Name City Number Code Street Road Avenue Item Sales Orders "
    "Room Cash Change Thank You Value List Record Plan Survey Staff Results Units Points"
)
FUNCTION = _split("the of is at for on in to and from with opens Please keep")
LETTERS = list("ABCDEFGHKLMNPRSTWXZ")
DIGITS = list("0123456789")
MARKS = list(":.,-/$%#")


def _unique(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


_SPACED = _unique(
    ADJECTIVES
    + NOUNS
    + ITEMS
    + PLACES
    + NAMES
    + CITIES
    + ANIMALS
    + MONTHS
    + DAYS
    + HEADS
    + FUNCTION
    + LETTERS
)
#: Token texts by class, as the tokenizer decodes them.
TOKENS: tuple[str, ...] = (BLANK_TOKEN, BAR_TOKEN, *DIGITS, *MARKS, *(" " + word for word in _SPACED))
SIZE = len(TOKENS)
_INDEX = {token: index for index, token in enumerate(TOKENS)}


def index(piece: str) -> int:
    """Class of a word, digit or mark as it is drawn (without the leading space)."""
    found = _INDEX.get(" " + piece, _INDEX.get(piece))
    if found is None or found < 2:
        raise KeyError(f"{piece!r} is not in the page vocabulary")
    return found


def shown(token: int) -> str:
    """What the tile of this class shows ('' for blank and bar)."""
    return "" if token < 2 else TOKENS[token].strip()


def pieces(text: str) -> list[int]:
    """Classes of a text in tiles: words as they are, numbers digit by digit, marks on their own."""
    out: list[int] = []
    for word in text.split():
        if word in _WORDS:
            out.append(index(word))
            continue
        stem = word
        while stem:  # "B47", "472", "A:" - letters, digits and marks one by one, except a leading known word
            head = next((w for w in (stem[:k] for k in range(len(stem), 0, -1)) if w in _WORDS), stem[0])
            out.append(index(head))
            stem = stem[len(head) :]
    return out


_WORDS = frozenset(_SPACED)


@cache
def token_ids(tokenizer) -> tuple[int, ...]:
    """Token id of every class; checks that each really is one token."""
    ids = []
    for token in TOKENS:
        found = tokenizer(token, add_special_tokens=False).input_ids
        if len(found) != 1:
            raise ValueError(f"{token!r} is {len(found)} tokens in this tokenizer, pages need one")
        ids.append(found[0])
    return tuple(ids)
