"""Captions of made-up scenes: text for a demonstration when there is none at hand.

A scene has an actor (a person or an animal), a second being, a thing, a place and perhaps a moment. A
caption says one to six things about it, each a segment ended by . ! ? or ; and later segments name the
same beings again, so that words repeat inside a caption. Caption i is a function of (seed, i) and of the
captions before it, which it must differ from: the first 100 of 20,000 are the 100 of a run that asks for
100.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import publish_file
from captionbert.artifacts.progress import progress
from captionbert.distill import scene_words as words

# How many captions have one, two, ... six segments, out of 100.
SEGMENT_WEIGHTS = (38, 24, 15, 10, 7, 6)
# Draws of one caption before the generator is called exhausted.
ATTEMPTS = 64


@dataclass(frozen=True)
class Being:
    """One noun of a scene: what it is, how it looks, and what one can say about it."""

    kind: str  # "person", "animal" or "object"
    noun: str
    look: str
    colour: str

    def first(self, rng: Random) -> str:
        """The noun phrase that introduces it: "a young man", "a small red ball"."""
        roll = rng.random()
        if roll < 0.25:
            return words.article(self.noun)
        if self.kind == "person" or roll < 0.6:
            return words.article(f"{self.look} {self.noun}")
        if roll < 0.85:
            return words.article(f"{self.colour} {self.noun}")
        return words.article(f"{self.look} {self.colour} {self.noun}")

    def again(self, rng: Random) -> str:
        """The noun phrase that names it once more: "the man", at times "the young man"."""
        return f"the {self.look} {self.noun}" if rng.random() < 0.2 else f"the {self.noun}"

    def act(self, rng: Random) -> str:
        """Something a person or an animal does, as a bare verb phrase."""
        return rng.choice(words.PERSON_ACTS if self.kind == "person" else words.ANIMAL_ACTS)


@dataclass(frozen=True)
class Scene:
    """Who and what is there, and where."""

    actor: Being
    other: Being
    thing: Being
    place: str
    moment: str


def _being(rng: Random, kind: str) -> Being:
    nouns, looks = {
        "person": (words.PEOPLE, words.PERSON_LOOKS),
        "animal": (words.ANIMALS, words.ANIMAL_LOOKS),
        "object": (words.CARRIED if rng.random() < 0.5 else words.OBJECTS, words.OBJECT_LOOKS),
    }[kind]
    return Being(kind, rng.choice(nouns), rng.choice(looks), rng.choice(words.COLOURS))


def draw_scene(rng: Random) -> Scene:
    """A random scene; its two beings have different nouns."""
    actor = _being(rng, "person" if rng.random() < 0.6 else "animal")
    other = actor
    while other.noun == actor.noun:
        other = _being(rng, "person" if rng.random() < 0.5 else "animal")
    moment = rng.choice(words.MOMENTS) if rng.random() < 0.3 else ""
    return Scene(actor, other, _being(rng, "object"), rng.choice(words.PLACES), moment)


def _verb(rng: Random, verb: str) -> str:
    """A singular verb phrase, simple or progressive."""
    return words.third_person(verb) if rng.random() < 0.4 else "is " + words.progressive(verb)


def _opening(scene: Scene, rng: Random) -> str:
    who, roll = scene.actor.first(rng), rng.random()
    if roll < 0.4:
        middle = _verb(rng, scene.actor.act(rng))
    elif roll < 0.7:
        middle = f"{_verb(rng, rng.choice(words.MEETING))} {scene.other.first(rng)}"
    elif scene.actor.kind == "person":
        middle = f"{_verb(rng, rng.choice(words.HANDLING))} {scene.thing.first(rng)}"
    else:
        middle = f"is {rng.choice(words.RELATIONS)} {scene.thing.first(rng)}"
    return " ".join(filter(None, (who, middle, scene.place, scene.moment)))


def _crowd(scene: Scene, rng: Random) -> str:
    number, noun = rng.choice(words.NUMBERS), words.plural(scene.actor.noun)
    if rng.random() < 0.4:
        return f"there are {number} {noun} {scene.place}"
    return f"{number} {scene.actor.look} {noun} are {words.progressive(scene.actor.act(rng))} {scene.place}"


def _relation(scene: Scene, rng: Random) -> str:
    left, right = rng.sample((scene.actor, scene.other, scene.thing), 2)
    return f"{left.again(rng)} is {rng.choice(words.RELATIONS)} {right.again(rng)}"


def _attribute(scene: Scene, rng: Random) -> str:
    if scene.actor.kind == "person" and rng.random() < 0.6:
        garment = words.article(f"{rng.choice(words.COLOURS)} {rng.choice(words.GARMENTS)}")
        return f"{scene.actor.again(rng)} {rng.choice(('wears', 'is wearing', 'has'))} {garment}"
    return f"the {scene.thing.noun} is {scene.thing.look} and {scene.thing.colour}"


def _handling(scene: Scene, rng: Random) -> str:
    person = scene.actor if scene.actor.kind == "person" else scene.other
    if person.kind != "person":
        return f"{person.again(rng)} stands {rng.choice(words.RELATIONS)} the {scene.thing.noun}"
    return f"{person.again(rng)} {_verb(rng, rng.choice(words.HANDLING))} {scene.thing.again(rng)}"


def _meeting(scene: Scene, rng: Random) -> str:
    left, right = rng.sample((scene.actor, scene.other), 2)
    return f"{left.again(rng)} {_verb(rng, rng.choice(words.MEETING))} {right.again(rng)}"


def _next_act(scene: Scene, rng: Random) -> str:
    who = rng.choice((scene.actor, scene.other))
    return f"{rng.choice(('then ', 'now ', 'later ', ''))}{who.again(rng)} {_verb(rng, who.act(rng))}"


def _together(scene: Scene, rng: Random) -> str:
    both = f"the {scene.actor.noun} and the {scene.other.noun}"
    state = rng.choice(("resting", "waiting", "running", "outside", scene.place))
    return f"{rng.choice(('both ', ''))}{both} are {state}"


def _denial(scene: Scene, rng: Random) -> str:
    if rng.random() < 0.5:
        return f"there is no {_being(rng, 'object').noun} {scene.place}"
    return f"{scene.other.again(rng)} is not {words.progressive(scene.other.act(rng))}"


def _comparison(scene: Scene, rng: Random) -> str:
    left, right = rng.sample((scene.actor, scene.other, scene.thing), 2)
    quality = rng.choice(("bigger", "smaller", "older", "closer", "louder"))
    return f"the {left.noun} is {quality} than the {right.noun}"


def _background(scene: Scene, rng: Random) -> str:
    return rng.choice(words.BACKGROUNDS)


def _question(scene: Scene, rng: Random) -> str:
    act = words.progressive(scene.actor.act(rng))
    forms = (
        f"is the {scene.actor.noun} {act}",
        f"where is the {scene.thing.noun}",
        f"who is {words.progressive(rng.choice(words.MEETING))} the {scene.other.noun}",
        f"why is the {scene.actor.noun} {scene.place}",
    )
    return rng.choice(forms)


Builder = Callable[[Scene, Random], str]
_OFTEN: tuple[Builder, ...] = (_relation, _attribute, _handling, _meeting, _next_act)
_SELDOM: tuple[Builder, ...] = (_together, _denial, _comparison, _background, _question)
LATER = (*_OFTEN, *_OFTEN, *_SELDOM)


def _segments(scene: Scene, count: int, rng: Random) -> list[tuple[str, bool]]:
    """`count` different things said about a scene, each with whether it is a question."""
    said = {(_crowd if rng.random() < 0.12 else _opening)(scene, rng): False}
    while len(said) < count:
        builder = rng.choice(LATER)
        said[builder(scene, rng)] = builder is _question
    return list(said.items())


def draw_caption(rng: Random) -> str:
    """One random caption: a scene and one to six segments about it."""
    count = rng.choices(range(1, len(SEGMENT_WEIGHTS) + 1), SEGMENT_WEIGHTS)[0]
    plain = rng.random() < 0.25  # a quarter is written without capitals, as captions often are
    parts, starts_sentence = [], not plain
    for index, (segment, asks) in enumerate(_segments(draw_scene(rng), count, rng)):
        end = "?" if asks else rng.choices(".!;", (80, 6, 14))[0]
        if index == count - 1 and end == ";":
            end = "."
        parts.append((segment[0].upper() + segment[1:] if starts_sentence else segment) + end)
        starts_sentence = end != ";" and not plain
    return " ".join(parts)


def scenes(count: int, seed: int = 0) -> Iterator[str]:
    """Yield `count` distinct captions. Memory: about 100 bytes a caption (an 8-byte digest in a set).

    Raises:
        InputError: `count` is negative, or the words do not give that many distinct captions.
    """
    if count < 0:
        raise InputError(f"the number of captions must be 0 or more, not {count}")
    seen: set[bytes] = set()
    for index in range(count):
        for attempt in range(ATTEMPTS):
            caption = draw_caption(Random(f"{seed}/{index}/{attempt}"))
            digest = blake2b(caption.encode(), digest_size=8).digest()
            if digest not in seen:
                break
        else:
            raise InputError(
                f"only {index} distinct captions were found, {count} were asked for; ask for fewer"
            )
        seen.add(digest)
        yield caption


def write_scenes(path: Path, count: int, seed: int = 0) -> None:
    """Write `count` distinct captions to `path`, one a line, whole or not at all."""
    with publish_file(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for caption in progress(scenes(count, seed), total=count, desc="scenes", unit="caption"):
            stream.write(caption + "\n")
