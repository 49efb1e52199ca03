"""The words of the caption generator: who, what, where and when, and the few rules that bend them.

Every table is a tuple of short English phrases: beings, how they look and what they do, things and what is
done with them, places, moments. The rules (article, plural, third person, -ing form) cover exactly the
words that stand here; the irregular ones are listed.
"""


def _phrases(text: str) -> tuple[str, ...]:
    """The phrases of a comma-separated list that may run over several lines."""
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


PEOPLE = _phrases("""
    man, woman, boy, girl, child, farmer, teacher, dancer, cyclist, baker, painter, nurse, fisherman,
    student, tourist, waiter, skier, surfer, violinist, drummer, carpenter, gardener, mechanic, police
    officer, firefighter, grandmother, grandfather, toddler, runner, climber, photographer, shopkeeper,
    soldier, bride, juggler, sailor, singer, guitarist, bus driver, chef, swimmer, skateboarder, street
    vendor, referee, football player
""")
PERSON_LOOKS = _phrases("""
    young, old, tall, smiling, bearded, tired, barefoot, middle-aged, elderly, cheerful, serious,
    muscular, thin, laughing, bald, freckled, curly-haired, blond, dark-haired, gray-haired, excited,
    bored, careful, lonely
""")
GARMENTS = _phrases("""
    hat, coat, scarf, shirt, jacket, dress, apron, helmet, sweater, uniform, raincoat, vest, cap,
    backpack, suit, robe, skirt, pair of boots, pair of gloves, pair of sunglasses, swimsuit, tie, hooded
    sweatshirt
""")
PERSON_ACTS = _phrases("""
    run, walk, sit, stand, wait, dance, sing, sleep, laugh, jump, kneel, swim, climb, smile, shout, rest,
    read, cook, cry, yawn, wave, jog, meditate, whistle, stretch, argue, bow, crouch, clap, lean against a
    wall, look up, take a nap, cross the street, talk on the phone, ride a bicycle, play the guitar, play
    chess, do a handstand, drink coffee, eat lunch
""")
ANIMALS = _phrases("""
    dog, cat, horse, cow, sheep, goat, bird, duck, swan, pigeon, rabbit, squirrel, elephant, giraffe,
    zebra, lion, tiger, bear, monkey, puppy, kitten, donkey, camel, penguin, seal, parrot, owl, eagle,
    fox, deer, turtle, frog, hen, rooster, pig, crow, goose, pony, seagull, sparrow, lizard, mouse, otter,
    wolf, dolphin, ox
""")
ANIMAL_LOOKS = _phrases("""
    spotted, striped, fluffy, wet, muddy, shaggy, sleepy, hungry, playful, wild, tame, enormous, tiny,
    skinny, frightened, curious, noisy, lazy, long-legged, short-tailed
""")
ANIMAL_ACTS = _phrases("""
    run, sleep, jump, eat, drink, hide, wait, rest, play, swim, stare, yawn, stand, sit, roll over, look
    around, dig a hole, shake off water, chase its tail, lick its paw, sniff the ground, walk in circles,
    stand very still
""")
OBJECTS = _phrases("""
    ball, kite, bicycle, umbrella, guitar, book, newspaper, basket, bucket, ladder, bench, table, chair,
    lamp, bottle, cup, plate, cake, sandwich, pizza, bowl of soup, loaf of bread, bunch of grapes, vase,
    clock, mirror, suitcase, violin, drum, camera, telephone, laptop, skateboard, surfboard, sled, boat,
    canoe, car, truck, bus, train, motorcycle, tractor, wagon, rope, flag, hammer, shovel, broom, blanket,
    pillow, box, barrel, bag, letter, map, candle, teapot, knife, fork, hat stand, bathtub, piano,
    trumpet, frisbee, tennis racket, baseball bat, toy train, paper plane, balloon, snowman, statue, tent,
    wheelbarrow, stroller, flower pot, watermelon, apple, banana, carrot, ice cream cone
""")
CARRIED = _phrases("""
    ball, kite, umbrella, guitar, book, newspaper, basket, bucket, bottle, cup, plate, cake, sandwich,
    violin, drum, camera, telephone, laptop, rope, flag, hammer, shovel, broom, blanket, box, bag, letter,
    map, candle, teapot, balloon, apple, banana, frisbee, tennis racket, baseball bat, ice cream cone,
    trumpet, suitcase
""")
HANDLING = _phrases("""
    hold, carry, lift, drop, throw, clean, paint, fix, hide, look at, point at, reach for, put down
""")
MEETING = _phrases("""
    watch, follow, chase, feed, greet, ignore, approach, help, photograph, stand beside, sit behind, walk
    past, run toward, look at, wait for, play with
""")
OBJECT_LOOKS = _phrases("""
    small, large, old, new, broken, shiny, dusty, heavy, empty, round, narrow, long, cheap, rusty, wooden,
    metal, plastic, glass, leather, stone, paper, painted, cracked, folded, dirty, clean, bright,
    half-full
""")
COLOURS = _phrases("""
    red, blue, green, yellow, black, white, brown, orange, purple, pink, gray, golden, silver, beige,
    turquoise
""")
PLACES = _phrases("""
    on the beach, in a park, near the river, under a tree, by the road, in a crowded market, on a mountain
    trail, in the kitchen, at a train station, in front of a church, behind the barn, on a wooden bridge,
    in a field of flowers, at the playground, in a dark alley, on the roof, beside a swimming pool, in the
    middle of the street, at the edge of a cliff, in a library, outside a cafe, in the snow, on a tennis
    court, at the harbor, in the living room, on a busy sidewalk, in a forest, at a birthday party, on
    stage, in an empty parking lot, near a waterfall, at the zoo, in a garage, in a small classroom, on a
    hill, by the window, in the desert, at a wedding, in a hospital corridor, on the deck of a ship, under
    a bridge, next to a fountain, in a vegetable garden, at the airport, inside a museum, on a football
    field, in tall grass, at a bus stop, in a shallow stream, on the stairs
""")
MOMENTS = _phrases("""
    at night, at sunset, in the morning, in the rain, on a sunny day, during a storm, in winter, in the
    fog, at noon, before dawn, on a windy day, in the summer heat, after school, on a cold evening, under
    a full moon
""")
RELATIONS = _phrases("""
    next to, behind, in front of, under, on top of, near, beside, far from, to the left of, to the right
    of, across from, close to, leaning on
""")
BACKGROUNDS = _phrases("""
    clouds drift over the hills, a crowd gathers in the distance, music is playing somewhere, the street
    lights are on, leaves cover the ground, smoke rises from a chimney, waves break on the rocks, a flag
    flaps in the wind, snow is falling, the shops are closed, lights glow in the windows, a clock strikes
    noon, the sky turns orange, rain runs down the glass, people are talking, a train passes, the water is
    calm, dust hangs in the air, several cars are parked, a bell rings
""")
NUMBERS = ("two", "three", "four", "five", "six", "several", "many", "a few", "a dozen")

_PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "fisherman": "fishermen",
    "snowman": "snowmen",
    "sheep": "sheep",
    "deer": "deer",
    "mouse": "mice",
    "goose": "geese",
    "wolf": "wolves",
    "ox": "oxen",
    "knife": "knives",
    "loaf": "loaves",
}
_THIRD = {"do": "does", "cry": "cries", "carry": "carries"}
_DOUBLED = {"run", "sit", "swim", "jog", "drop", "clap", "put", "dig"}


def article(phrase: str) -> str:
    """`phrase` with "a" or "an" before it, by its first letter ("uniform" does not sound a vowel)."""
    vowel = phrase[0] in "aeiou" and not phrase.startswith("uni")
    return f"{'an' if vowel else 'a'} {phrase}"


def plural(noun: str) -> str:
    """The plural of a noun phrase; of "X of Y" the first noun is bent."""
    head, of, rest = noun.partition(" of ")
    before, space, last = head.rpartition(" ")
    return before + space + _plural_word(last) + of + rest


def _plural_word(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def third_person(verb: str) -> str:
    """ "run past" -> "runs past": the first word takes the third person."""
    word, space, rest = verb.partition(" ")
    if word in _THIRD:
        return _THIRD[word] + space + rest
    ending = "es" if word.endswith(("s", "x", "ch", "sh")) else "s"
    return word + ending + space + rest


def progressive(verb: str) -> str:
    """ "run past" -> "running past": the first word takes -ing."""
    word, space, rest = verb.partition(" ")
    if word in _DOUBLED:
        word += word[-1]
    elif word.endswith("e") and not word.endswith("ee"):
        word = word[:-1]
    return word + "ing" + space + rest
