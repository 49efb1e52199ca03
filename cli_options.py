"""The options of each verb of `captionbert`, the types of their values, and how a verb is declared.

Imports argparse alone: quick to start.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

DTYPES = ("fp32", "bf16", "fp16")
Verb = Callable[[argparse.Namespace], int]


def count(text: str) -> int:
    """A whole number from 1 to 2^31 - 1, as an option's type."""
    return _whole(text, 1, 2**31)


def seed(text: str) -> int:
    """A whole number from 0 to 2^63 - 1, as an option's type."""
    return _whole(text, 0, 2**63)


def _whole(text: str, least: int, limit: int) -> int:
    if not (text.isdecimal() and len(text) < 20 and least <= int(text) < limit):
        raise argparse.ArgumentTypeError(f"expected a whole number of {least} or more, found {text[:30]!r}")
    return int(text)


def weights(text: str) -> dict[str, float]:
    """NAME=NUMBER,... by name, as an option's type; which names and numbers will do is the consensus' to say."""
    found: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = (part.strip() for part in word.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            name = ""
        if not name or name in found:
            raise argparse.ArgumentTypeError(
                f"expected NAME=NUMBER,NAME=NUMBER, each name once, found {text[:60]!r}"
            )
        found[name] = value
    return found


def weights_option(parser: argparse.ArgumentParser) -> None:
    """--weights of the verbs that fit a frame."""
    note = "weights of teachers in the consensus, by their short names; one not named weighs 1 [kept, equal at first]"
    parser.add_argument("--weights", type=weights, metavar="A=2,B=1", help=note)


def counts(text: str) -> list[int]:
    """Whole numbers of 1 or more, comma-separated, as an option's type."""
    return [count(word) for word in word_list(text) or [""]]


def factors(text: str) -> list[float]:
    """Numbers of 1 or more, comma-separated, as an option's type."""
    try:
        values = [float(word) for word in word_list(text)]
    except ValueError:
        values = []
    if not values or not all(1 <= value < 1e6 for value in values):
        raise argparse.ArgumentTypeError(
            f"expected numbers of 1 or more, comma-separated, found {text[:30]!r}"
        )
    return values


def show_example(parser: argparse.ArgumentParser, example: str) -> None:
    """Put a command line under the help text."""
    parser.epilog = f"example:\n  captionbert {example}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def verb_parser(verbs: Any, name: str, run: Verb, example: str) -> argparse.ArgumentParser:
    """A verb: its help line and description are the docstring of its function."""
    text = (run.__doc__ or "").strip()
    parser = verbs.add_parser(
        name,
        help=(text if text[1].isupper() else text[0].lower() + text[1:]).rstrip("."),
        description=text,
    )
    show_example(parser, example)
    parser.set_defaults(run=run)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def some(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options by name, to hand on as keywords."""
    return {name: getattr(options, name) for name in names}


def word_list(text: str) -> list[str]:
    """The words of a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def json_flag(parser: argparse.ArgumentParser) -> None:
    """--json of a verb that prints its result."""
    parser.add_argument("--json", action="store_true", help="print machine-readable output instead")


def embed_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert embed`."""
    add = parser.add_argument
    add(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts; a blank one is embedded as the empty text; - reads stdin",
    )
    add("--file", metavar="F", help=".txt (one a line), .jsonl, either with .gz, or .parquet; - reads stdin")
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add(
        "--out",
        type=Path,
        metavar="F",
        help="write F.npy (float32 [texts, width]) or F.parquet (text, embedding)",
    )
    add("--model", type=Path, metavar="FOLDER", help="exported folder [$CAPTIONBERT_MODEL]")
    add("--batch-tokens", type=count, default=4096, metavar="N", help="tokens of one forward pass [4096]")
    add("--max-length", type=count, metavar="N", help="cut texts at N tokens [the model's limit]")
    add("--truncate-dim", type=count, metavar="N", help="keep the first N coordinates, normalised again")
    add("--dtype", choices=DTYPES, help="number type of the weights [as stored]")
    add(
        "--device",
        default="auto",
        choices=("auto", "cpu", "cuda"),
        help="where to run [a GPU where there is one]",
    )
    add(
        "--trust-remote-code",
        action="store_true",
        help="run the folder's own code where it differs from this package",
    )
    json_flag(parser)


def consensus_options(parser: argparse.ArgumentParser, *, first: bool) -> None:
    """A step of `captionbert consensus`; `first`: there is none before it, so the corpus must be given."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the consensus")
    note = "" if first else "; the steps before this one are done first when given"
    corpus_options(parser, required=first, note=note)
    add("--reference", metavar="NAME", help="teacher whose coordinates are the frame [the first]")
    add("--control", action="append", metavar="F", help="other text, to compare effective ranks with")
    add("--sample-rows", type=count, default=24_000, metavar="N", help="rows the maps are fitted on [24000]")
    if first:
        parser.set_defaults(weights=None)
    else:
        weights_option(parser)
    add("--force", action="store_true", help="go on with fewer than 10 fit rows a coordinate")
    json_flag(parser)


def corpus_options(parser: argparse.ArgumentParser, *, required: bool, note: str = "") -> None:
    """Where captions come from and who embeds them; `note` follows the help of both."""
    add = parser.add_argument
    kinds = ".txt, .jsonl (or .gz), .parquet, or datasets:ID@REVISION[:SPLIT[:COLUMN]]; repeatable"
    add("--corpus", action="append", required=required, metavar="F", help=kinds + note)
    names = "comma-separated: minilm, mpnet, paraphrase-l3, a folder, ID@REVISION, onnx:FILE:TOKENIZER"
    add("--teachers", required=required, metavar="A,B", help=names + note)
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add("--exclude", type=Path, metavar="F", help="file of digests of sentences to leave out of the corpus")
    add(
        "--held-out",
        type=int,
        default=2000,
        metavar="N",
        help="captions kept out of training, 1 or more, 5 %% at most [2000]",
    )


def export_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert export`."""
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="a run, or one of its checkpoints"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--dtype", choices=DTYPES, help="number type of the weights [as trained]")
    parser.add_argument(
        "--fallback", action="store_true", help="also readable by older sentence-transformers and servers"
    )
    parser.add_argument("--replace", action="store_true", help="replace an export of another run at OUT")
    json_flag(parser)


def parity_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert parity`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="what was exported")
    add("folder", type=Path, metavar="OUT", help="the exported folder")
    add(
        "--profile",
        default="everyday",
        choices=("everyday", "longest", "full"),
        help="longest adds one slow row of the full length, full all slow cases [everyday]",
    )
    add("--dtypes", default="fp32,bf16,fp16", metavar="A,B", help="number types to compare [fp32,bf16,fp16]")
    add(
        "--python",
        metavar="PATH",
        help="another interpreter for both sides, e.g. with another transformers",
    )
    add("--json", type=Path, metavar="F", help="write the report to F")


def evaluate_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert evaluate`."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="SentenceTransformer folder, packaged:minilm, consensus:DIR")
    add("--suite", default="sts8", help="group of tasks [sts8]")
    add("--tasks", metavar="A,B", help="only these tasks, e.g. stsb,sickr,sts12")
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="take stsb-test.jsonl, sickr-test.jsonl ... from DIR, without a network",
    )
    add("--json", type=Path, metavar="F", help="write the result to F")
    add("--batch-size", type=count, default=32, metavar="N", help="texts of one forward pass [32]")
    add("--dtype", choices=DTYPES, help="number type of the weights [fp32]")
    add("--max-length", type=count, metavar="N", help="cut texts at N tokens [the model's limit]")


def info_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert info`."""
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="export, run, checkpoint, consensus, corpus, distill"
    )
    json_flag(parser)


def coverage_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe coverage`."""
    add = parser.add_argument
    add(
        "corpus",
        nargs="+",
        metavar="CORPUS",
        help=".txt, .jsonl (or .gz), .parquet, a corpus or consensus folder, or datasets:ID@REVISION",
    )
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add(
        "--tokenizer",
        default="packaged:minilm",
        metavar="T",
        help="folder or packaged:NAME [packaged:minilm]",
    )
    add("--max-length", type=count, default=256, metavar="N", help="rows are cut at N tokens [256]")
    add("--json", type=Path, metavar="F", help="write the report to F")


def sample_options(parser: argparse.ArgumentParser) -> None:
    """What the probes of a model on a sample of captions share."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="exported folder, run or checkpoint")
    add("--captions", required=True, metavar="F", help="file or corpus folder to draw captions from")
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add("--rows", type=count, default=4096, metavar="N", help="captions to draw [4096]")
    add("--seed", type=seed, default=0, metavar="N", help="seed of the draw [0]")
    add(
        "--max-length",
        type=count,
        metavar="N",
        help="captions are cut at N tokens [256, or the model's limit]",
    )
    add("--batch-tokens", type=count, default=4096, metavar="N", help="tokens of one forward pass [4096]")
    add("--json", type=Path, metavar="F", help="write the report to F")
    head_options(parser)


def head_options(parser: argparse.ArgumentParser) -> None:
    """Which head is read, of which model."""
    add = parser.add_argument
    add("--head", metavar="L:H", help="layer from 1, head from 0 [the model's designated head]")
    add("--dtype", choices=DTYPES, help="number type of the weights [as stored]")
    add(
        "--trust-remote-code",
        action="store_true",
        help="run the folder's own code where it differs from this package",
    )


def lookup_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe lookup`."""
    sample_options(parser)
    add = parser.add_argument
    add("--search-heads", action="store_true", help="also report the best head of every layer, as a search")
    add(
        "--arrays", type=Path, metavar="F.npz", help="write row numbers and raw values of each query to F.npz"
    )


def interventions_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe interventions`."""
    sample_options(parser)
    add = parser.add_argument
    add("--dev-pairs", type=Path, metavar="F", help="JSONL of STS-B dev; adds its Spearman correlation")
    add("--consensus", type=Path, metavar="DIR", help="adds the target cosine on its held-out captions")
    add(
        "--seed-of-start",
        type=seed,
        metavar="N",
        help="seed of the fresh start [the run's, from its config/recipe.yaml]",
    )


def show_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe show`."""
    add = parser.add_argument
    add("text", metavar="TEXT", help="a caption, best one in which a word occurs twice")
    add("--model", type=Path, required=True, metavar="FOLDER", help="exported folder, run or checkpoint")
    add("--html", type=Path, required=True, metavar="F", help="page to write")
    add("--max-length", type=count, metavar="N", help="show N tokens at most [512]")
    head_options(parser)


def models_options(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Which frozen models are measured, and how they are loaded."""
    add = parser.add_argument
    kinds = "exported folder, run, checkpoint, packaged:NAME or another teacher, consensus:DIR"
    if several:
        add("--models", type=word_list, required=True, metavar="A,B", help=f"comma-separated: {kinds}")
    else:
        add("--queries", required=True, metavar="MODEL", help=f"model of the queries: {kinds}")
        add("--documents", required=True, metavar="MODEL", help="model of the documents")
    add("--dtype", default="fp32", choices=DTYPES, help="number type of the weights [fp32]")
    add(
        "--trust-remote-code",
        action="store_true",
        help="run an exported folder's own code where it differs from this package",
    )
    add("--json", type=Path, metavar="F", help="write the report to F")


def binding_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe binding`."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSONL (or .gz) of caption, same_image, negative, perhaps type",
    )
    add("--seed", type=seed, default=0, metavar="N", help="seed of the bootstrap [0]")
    add("--arrays", type=Path, metavar="F.npz", help="write the share of right triples of each row to F.npz")
    models_options(parser)


def asymmetric_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe asymmetric`."""
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="JSONL of sentence1, sentence2, score")
    add(
        "--dims",
        type=counts,
        default=[],
        metavar="N,N",
        help="also only the first N coordinates, normalised again",
    )
    models_options(parser, several=False)


def geometry_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe geometry`."""
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="captions, e.g. in and out of domain; or a corpus folder")
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add("--rows", type=count, default=4096, metavar="N", help="captions to draw of each file [4096]")
    add("--seed", type=seed, default=0, metavar="N", help="seed of the draw [0]")
    models_options(parser)


def documents_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert probe documents`."""
    add = parser.add_argument
    add("captions", metavar="FILE", help="captions that documents are made of; or a corpus folder")
    add("--column", metavar="NAME", help="text column of JSONL or Parquet [text, caption or sentence]")
    add(
        "--groups",
        metavar="F",
        help="JSONL, captions of one image a line: ask by another caption of the image",
    )
    add("--lengths", type=counts, default=[64, 256, 1024], metavar="N,N", help="tokens [64,256,1024]")
    add("--documents", type=count, default=100, metavar="N", help="documents to search among [100]")
    add("--queries", type=count, metavar="N", help="queries [one a document]")
    add("--chunk", type=count, default=64, metavar="N", help="tokens of a chunk [64]")
    add(
        "--rotary-factors",
        type=factors,
        default=[1.0],
        metavar="X,X",
        help="stretch rotary models so many times beyond their training length [1]",
    )
    add("--split", default="dev", choices=("dev", "test"), help="choose on dev, report on test [dev]")
    add("--seed", type=seed, default=0, metavar="N", help="seed of splits, documents and queries [0]")
    add(
        "--tokenizer",
        metavar="T",
        help="what measures the tokens: folder or packaged:NAME [the first model's]",
    )
    models_options(parser)


def distill_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert distill`."""
    add = parser.add_argument
    corpus_options(parser, required=True)
    add("--out", type=Path, required=True, metavar="DIR", help="folder of everything that is made")
    add("--recipe", default="mini", metavar="R", help="a recipe's name or YAML file [mini]")
    add("--minutes", type=float, metavar="M", help="training time [the recipe's]")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting of the recipe; repeatable",
    )
    weights_option(parser)
    add("--data", type=Path, metavar="DIR", help="folder of STS files to evaluate on, without a network")
    add("--force", action="store_true", help="go on with fewer than 10 fit rows a coordinate")
    add("--redo", metavar="STAGE", help="make this stage and all after it again")
    json_flag(parser)


def scenes_options(parser: argparse.ArgumentParser) -> None:
    """`captionbert scenes`."""
    parser.add_argument("--count", type=count, default=20_000, metavar="N", help="distinct captions [20000]")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="another seed, other captions [0]")
    parser.add_argument("--out", type=Path, metavar="F", help="file to write [standard output]")
