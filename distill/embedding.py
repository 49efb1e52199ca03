"""What `captionbert embed` does once its options are read: choose the model, encode, write or tell.

Imports nothing heavy at the top: of the second or two that the verb takes, importing is nearly all.
"""

import os
from argparse import Namespace
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError

# The model that comes with the package: see its README.md and parity.json.
SHIPPED = Path(__file__).resolve().parent.parent / "pretrained" / "captionbert-mini"
# Texts up to this many have their nearest pairs printed: all pairs are compared.
FEW_TEXTS = 2000


def run_embed(options: Namespace) -> tuple[dict[str, Any], str]:
    """Encode the texts that `options` names; returns the facts for --json and the text for a person.

    Raises:
        InputError: no texts, two sources of texts, too many for the screen, no model, an option out of range.
    """
    texts = texts_of(options)
    if options.out is not None:
        from captionbert.distill.vectors import check_out

        check_out(options.out)
    encode, width = _encoder(options)
    if options.out is not None:
        return _to_file(texts, encode, width, options.out)
    rows = list(texts)
    if not rows:
        raise InputError("no texts: the input is empty")
    if len(rows) > FEW_TEXTS:
        raise InputError(f"{len(rows)} texts: more than {FEW_TEXTS} go into a file: add --out F.npy")
    return _to_screen(rows, encode(rows), with_vectors=options.json)


def texts_of(options: Namespace) -> Iterable[str]:
    """The texts given as words, or those of --file, or standard input for "-"; a list or a stream."""
    if bool(options.texts) == bool(options.file):
        raise InputError("give texts, or --file FILE (- reads standard input), and not both")
    if options.texts and options.texts != ["-"]:
        return [text.strip() for text in options.texts]
    from captionbert.distill.vectors import read_texts

    return read_texts(options.file or "-", options.column)


def model_folder(given: Path | None) -> Path:
    """--model, else $CAPTIONBERT_MODEL, else the model that ships with the package.

    Raises:
        InputError: none was named, and this copy of the package came without its model.
    """
    if given is not None:
        return given
    if "CAPTIONBERT_MODEL" in os.environ:
        return Path(os.environ["CAPTIONBERT_MODEL"])
    if (SHIPPED / "config.json").is_file():
        return SHIPPED
    raise InputError(
        "no model: give --model FOLDER (`captionbert distill` writes one) or set CAPTIONBERT_MODEL"
    )


def _encoder(options: Namespace) -> tuple[Any, int]:
    """(texts -> vectors [N, E], E) of the chosen model."""
    from captionbert.distill.encoders import OwnEncoder

    own = OwnEncoder(
        model_folder(options.model),
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        device=options.device,
        lean=True,
    )
    limit, full = own.max_tokens, own.width
    length = limit if options.max_length is None else options.max_length
    width = full if options.truncate_dim is None else options.truncate_dim
    if not 2 <= length <= limit:
        raise InputError(f"--max-length {length}: this model reads 2 to {limit} tokens")
    if not 1 <= width <= full:
        raise InputError(f"--truncate-dim {width}: this model's vectors have 1 to {full} coordinates")
    own.tokenizer.enable_truncation(length)
    settings = {"batch_tokens": options.batch_tokens, "max_length": length, "truncate_dim": width}
    return partial(own.encode, **settings), width


def _to_file(texts: Iterable[str], encode: Any, width: int, out: Path) -> tuple[dict[str, Any], str]:
    from captionbert.artifacts.progress import progress
    from captionbert.distill.vectors import embed_to_file

    with progress(total=len(texts) if isinstance(texts, list) else None, desc="embed", unit="text") as bar:
        counts = embed_to_file(texts, encode, width, out, bar)
    blank = f", {counts['blank']} of them of a blank text" if counts["blank"] else ""
    return {"out": str(out), "width": width, **counts}, f"{out}: {counts['texts']} vectors of {width}{blank}"


def _to_screen(texts: list[str], vectors: Any, *, with_vectors: bool) -> tuple[dict[str, Any], str]:
    from captionbert.distill.vectors import nearest_pairs

    pairs = nearest_pairs(vectors)
    facts: dict[str, Any] = {"width": vectors.shape[1], "texts": texts}
    if with_vectors:
        facts["vectors"] = [[float(x) for x in row] for row in vectors]
    facts["pairs"] = [{"cosine": cosine, "first": i, "second": j} for i, j, cosine in pairs]
    if len(texts) == 1:
        start = " ".join(f"{x:.4f}" for x in vectors[0, :6])
        return facts, f"1 vector of {vectors.shape[1]}, unit length: {start} ..."
    lines = [f"{cosine:.4f}  {texts[i]!r}  {texts[j]!r}" for i, j, cosine in pairs]
    return facts, f"{len(texts)} vectors of {vectors.shape[1]}; nearest pairs:\n" + "\n".join(lines)
