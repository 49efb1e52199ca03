"""Recipes: one YAML a recipe, read into frozen dataclasses; an unknown key is an error that names the near
match.

`load_recipe` takes the name of a file here, or a path, and applies `--set section.key=value` overrides, which
win. A recipe says everything that decides the weights, and a few conveniences that do not (`NOT_BINDING`):
those may change between the start and the resumption of a run.
"""

import dataclasses
import difflib
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from captionbert.artifacts.errors import InputError

FOLDER = Path(__file__).parent
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class ModelSection:
    """The student: a preset by name, fields changed in it, and an optional start for its token table."""

    preset: str = "captionbert-mini"
    overrides: dict[str, Any] = field(default_factory=dict)  # fields of CaptionBertConfig
    init_embeddings_from: str | None = None  # "packaged:NAME" or a model folder: start of the word embeddings
    # Tokens that end a segment; only structured positions read them.
    boundary_tokens: list[str] = field(default_factory=lambda: [".", "!", "?", ";"])


@dataclass(frozen=True)
class DataSection:
    """Where captions, targets and tokenizer are. `consensus` is a work folder that holds corpus/ and
    targets/.
    """

    consensus: str | None = None
    corpus: str | None = None
    targets: str | None = None
    tokenizer: str = "packaged:minilm"  # a folder, "packaged:NAME" or "hub-id@revision"
    frame_id: str | None = None  # refuse targets of any other frame
    rows: int | None = None  # use the first so many training rows; None: all
    # Train on these sources alone: name of the file -> share of its rows, over 0 to 1, spread evenly. Empty: on all.
    sources: dict[str, Any] = field(default_factory=dict)
    max_length: int = 256  # tokens, special tokens included


@dataclass(frozen=True)
class ScheduleSection:
    """How long and how fast. Exactly one of epochs, steps, minutes; `minutes` becomes steps before step 0."""

    epochs: float | None = None
    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 2048  # rows of the global batch = the negative set
    learning_rate: float = 6e-4
    min_learning_rate: float = 1e-6
    warmup: float = 2000  # steps; below 1 a share of the run
    clip: float = 1.0  # largest gradient norm


@dataclass(frozen=True)
class LossSection:
    """Weights of the loss terms; 0 leaves a term out. Their formulas stand in training/losses.py.

    The defaults are InfoNCE at `temperature` plus the mean squared difference per coordinate. Similarity and ranking
    ask for angles between students alone, which any turn of the frame keeps: beside them contrast or mse is needed for
    vectors that can be compared with the targets.
    """

    temperature: float = 0.07
    symmetric: bool = False  # InfoNCE in both directions: targets find students too
    contrast_weight: float = 1.0  # of InfoNCE; 0: plain alignment by mse
    mse_weight: float = 1.0
    similarity_weight: float = 0.0  # of the squared differences of the batch's similarity matrices
    ranking_weight: float = 0.0  # of the order of similarities to an anchor
    ranking_margin: float = (
        0.015  # cosine by which the teachers must, and the student shall, tell two pairs apart
    )
    matryoshka_weight: float = 0.0  # of all the above on the first coordinates alone
    matryoshka_dims: list[int] = field(
        default_factory=list
    )  # how many of them, each below the targets' width
    # Of the designated head's missing attention to records; structured positions only.
    lookup_weight: float = 0.0


@dataclass(frozen=True)
class ComputeSection:
    """Precision and memory. fp32 parameters always; bf16 and fp16 by autocast, fp16 with a loss scale."""

    precision: str = (
        "auto"  # bf16 where this machine computes in it, otherwise fp32; a begun run keeps its own
    )
    micro_batch_tokens: int = 8192  # tokens of one forward pass; does not change the loss
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class CheckpointSection:
    """When resumable state is written: every so many minutes, and every so many steps if given."""

    minutes: float = 30.0
    steps: int | None = None
    keep: int = 2


@dataclass(frozen=True)
class GaugeSection:
    """What is measured while training. `eval_every` None: ten evaluations spread over the run."""

    eval_every: int | None = None
    log_every: int = 10
    held_out_rows: int = 2000
    dev_pairs: str | None = None  # JSONL of sentence1, sentence2, score: Spearman at each evaluation
    tensorboard: bool = False


@dataclass(frozen=True)
class Recipe:
    """Everything `train_accelerate` needs, by section."""

    name: str
    seed: int = 0
    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    loss: LossSection = field(default_factory=LossSection)
    compute: ComputeSection = field(default_factory=ComputeSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    gauges: GaugeSection = field(default_factory=GaugeSection)


# Keys that decide no weight and no metric: they may differ on resumption. Data are compared by digest.
NOT_BINDING = (
    "data.consensus",
    "data.corpus",
    "data.targets",
    "data.tokenizer",
    "model.init_embeddings_from",
    "checkpoint.minutes",
    "checkpoint.steps",
    "checkpoint.keep",
    "gauges.dev_pairs",
    "gauges.tensorboard",
)

# Keys that came after runs had been stored. At their default they change nothing and stay out of `binding`, so that
# such a run keeps its identity and can be resumed.
ADDED_LATER = (
    "data.sources",
    "loss.contrast_weight",
    "loss.similarity_weight",
    "loss.ranking_weight",
    "loss.ranking_margin",
    "loss.matryoshka_weight",
    "loss.matryoshka_dims",
)


def recipe_names() -> list[str]:
    """Names of the recipes in this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_recipe(source: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """The recipe called `source` (a name from `recipe_names()` or a YAML file), with `section.key=value`
    overrides.

    Raises:
        InputError: no such recipe, not YAML, an unknown key, or a value of the wrong type or out of range.
    """
    path = _find(source)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a YAML file ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a mapping of recipe keys, found {type(values).__name__}")
    values.setdefault("name", path.stem)
    for override in overrides:
        _apply(values, override)
    return recipe_from_dict(values, str(path))


def recipe_from_dict(values: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from nested plain values; InputError as in `load_recipe`, `where` opens the message."""
    recipe = _build(Recipe, values, where, "")
    _check(recipe, where)
    return recipe


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Nested plain values that `recipe_from_dict` reads back to an equal recipe."""
    return dataclasses.asdict(recipe)


def flat(recipe: Recipe) -> dict[str, Any]:
    """The recipe as one level of `section.key` names; `model.overrides` stays one value."""
    values: dict[str, Any] = {}
    for key, value in recipe_to_dict(recipe).items():
        if isinstance(value, dict):
            values.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            values[key] = value
    return values


def binding(recipe: Recipe) -> dict[str, Any]:
    """The part of `flat(recipe)` that must not change when a run is resumed; see NOT_BINDING and ADDED_LATER."""
    default = flat(Recipe(recipe.name))
    return {
        key: value
        for key, value in flat(recipe).items()
        if key not in NOT_BINDING and not (key in ADDED_LATER and value == default[key])
    }


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise InputError(f"{path}: no such recipe file")
    packaged = FOLDER / f"{source}.yaml"
    if packaged.is_file() and packaged.parent == FOLDER:
        return packaged
    raise InputError(
        f"no recipe called {str(source)!r}{_near(str(source), recipe_names())}; "
        f"known: {', '.join(recipe_names())}, or give the path of a .yaml file"
    )


def _near(word: str, known: list[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _apply(values: dict[str, Any], override: str) -> None:
    """Set `a.b=value` inside `values`; the value is read as YAML, so numbers and true/false/null are
    themselves.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {override!r}: expected section.key=value, e.g. schedule.batch_size=512")
    target = values
    *sections, last = key.strip().split(".")
    for section in sections:
        inner = target.setdefault(section, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {override!r}: {section!r} is a value, not a section")
        target = inner
    try:
        target[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        fault = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"--set {override!r}: its value cannot be read as YAML ({fault})") from None


def _build(kind: type, values: Any, where: str, prefix: str) -> Any:
    """A dataclass of `kind` from a mapping, each value checked against its annotation."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: {prefix.rstrip('.')} must be a mapping, found {values!r}")
    hints = get_type_hints(kind)
    arguments = {}
    for key, value in values.items():
        if key not in hints:
            raise InputError(
                f"{where}: unknown key {prefix + str(key)!r}{_near(str(key), list(hints))}; "
                f"{prefix.rstrip('.') or 'a recipe'} knows {', '.join(hints)}"
            )
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            arguments[key] = _build(hint, value or {}, where, f"{prefix}{key}.")  # type: ignore[arg-type]
        else:
            arguments[key] = _typed(value, hint, f"{where}: {prefix}{key}")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise InputError(f"{where}: {error}") from None


def _typed(value: Any, hint: Any, where: str) -> Any:
    """`value` if it fits `hint`, with integers widened to floats and "6e-4", which YAML reads as text, to a
    number.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        plain = get_origin(option) or option
        if plain is float and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                continue
        if isinstance(value, plain) and (plain is bool or not isinstance(value, bool)):
            return value
    names = " or ".join(
        "null" if o is type(None) else getattr(get_origin(o) or o, "__name__", str(o)) for o in options
    )
    raise InputError(f"{where} must be {names}, found {value!r}")


def _check(recipe: Recipe, where: str) -> None:
    """Ranges that no type can say."""
    schedule, compute = recipe.schedule, recipe.compute
    given = [key for key in ("epochs", "steps", "minutes") if getattr(schedule, key) is not None]
    if len(given) != 1:
        raise InputError(
            f"{where}: give exactly one of schedule.epochs, schedule.steps, schedule.minutes; "
            f"found {', '.join(given) or 'none'} (an override sets one to null: --set schedule.epochs=null)"
        )
    if compute.precision not in PRECISIONS:
        raise InputError(
            f"{where}: compute.precision must be one of {', '.join(PRECISIONS)}, found {compute.precision!r}"
        )
    if schedule.batch_size < 2:
        raise InputError(
            f"{where}: schedule.batch_size must be 2 or more (the other captions of a batch are the negatives), "
            f"found {schedule.batch_size}"
        )
    positive = {
        f"schedule.{given[0]}": getattr(schedule, given[0]),
        "schedule.learning_rate": schedule.learning_rate,
        "schedule.clip": schedule.clip,
        "loss.temperature": recipe.loss.temperature,
        "compute.micro_batch_tokens": compute.micro_batch_tokens,
        "data.max_length": recipe.data.max_length,
        "checkpoint.minutes": recipe.checkpoint.minutes,
        "checkpoint.keep": recipe.checkpoint.keep,
        "gauges.log_every": recipe.gauges.log_every,
        "gauges.held_out_rows": recipe.gauges.held_out_rows,
        "data.rows": recipe.data.rows,
        "checkpoint.steps": recipe.checkpoint.steps,
        "gauges.eval_every": recipe.gauges.eval_every,
    }
    for key, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{where}: {key} must be a positive number, found {value}")
    not_negative = {
        **{f"loss.{key}": value for key, value in vars(recipe.loss).items() if key.endswith("_weight")},
        "loss.ranking_margin": recipe.loss.ranking_margin,
        "schedule.warmup": schedule.warmup,
    }
    for key, value in not_negative.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"{where}: {key} must be a number of 0 or more, found {value}")
    for name, share in recipe.data.sources.items():
        if not isinstance(name, str):
            raise InputError(
                f"{where}: data.sources names {name!r}, which is no text; expected names of files (in quotes where "
                "YAML would read something else)"
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InputError(
                f"{where}: data.sources gives {name!r} the share {share!r}; expected a number over 0 and up to 1 (a "
                "source that is not named is left out)"
            )
    _check_loss(recipe.loss, where)
    alone = not any((recipe.loss.contrast_weight, recipe.loss.mse_weight, recipe.loss.similarity_weight))
    if schedule.batch_size < 3 and alone:
        raise InputError(
            f"{where}: loss.ranking_weight alone compares three captions, so schedule.batch_size must be 3 or more, "
            f"found {schedule.batch_size}"
        )


def _check_loss(loss: LossSection, where: str) -> None:
    """What the loss terms ask of one another; `training.losses.check_dims` adds what needs the targets' width."""
    sentence = ("contrast_weight", "mse_weight", "similarity_weight", "ranking_weight")
    if not any(getattr(loss, key) for key in sentence):
        raise InputError(
            f"{where}: {', '.join(f'loss.{key}' for key in sentence)} are all 0, so nothing would train the sentence "
            "vectors; give at least one of them a positive weight (contrast and mse are 1 by default)"
        )
    if loss.ranking_margin >= 2:
        raise InputError(
            f"{where}: loss.ranking_margin must be below 2, the largest difference of two cosines, found "
            f"{loss.ranking_margin}"
        )
    dims = loss.matryoshka_dims
    wrong = [d for d in dims if not isinstance(d, int) or isinstance(d, bool) or d < 2]
    if wrong:
        raise InputError(
            f"{where}: loss.matryoshka_dims must be whole numbers of coordinates from 2 (one of unit length is but a "
            f"sign, which no gradient moves) to below the targets' width, found {wrong[0]!r}"
        )
    twice = sorted({d for d in dims if dims.count(d) > 1})
    if twice:
        raise InputError(
            f"{where}: loss.matryoshka_dims names {twice[0]} more than once; name each width once"
        )
    if bool(dims) != bool(loss.matryoshka_weight):
        raise InputError(
            f"{where}: loss.matryoshka_weight is {loss.matryoshka_weight:g} and loss.matryoshka_dims {dims}; the term "
            "needs both a positive weight and at least one width (e.g. 1.0 and [64, 128, 256]), or neither"
        )
