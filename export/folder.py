"""`captionbert export`: a training checkpoint becomes a folder that loads without this package.

The folder holds config.json with `auto_map`, the remote-code files byte for byte, model.safetensors, the
tokenizer, the SentenceTransformer files, a README, and `captionbert.json`: the digest of every file that
decides a vector, and one digest over them all. `verify_export` compares them before anything in the folder is
imported.
"""

from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    ABOUT_EXPORT,
    EXPORT_KIND,
    EXPORT_RECORD,
    MANIFEST,
    digest_json,
    publish_folder,
    read_json,
    sha256_file,
    write_json,
)
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.export.source import Source, cast, model_dtype, read_source
from captionbert.export.st_files import write_fallback, write_own_head
from captionbert.export.tokenizer import write_tokenizer
from captionbert.model_card.render import write_card
from captionbert.modeling_captionbert import CaptionBertModel

REMOTE_FILES = (
    "attention_captionbert.py",
    "configuration_captionbert.py",
    "encoding_captionbert.py",
    "modeling_captionbert.py",
    "rotary_captionbert.py",
)


def export_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    *,
    dtype: str | None = None,
    fallback: bool = False,
    replace: bool = False,
) -> Path:
    """Write the Hub folder of a checkpoint; an earlier export of the same run at `out` is replaced whole.

    Args:
        checkpoint: a run folder (its final checkpoint), a checkpoint folder, or its `model/` folder.
        out: the folder to write.
        dtype: "fp32", "bf16" or "fp16"; None keeps the checkpoint's.
        fallback: write the SentenceTransformer files in the form that older versions and servers read.
        replace: also replace an export of another run.

    Returns:
        `out`.

    Raises:
        InputError: a checkpoint that fails a check (see `read_source`), or an `out` that holds something
            else.
    """
    source = read_source(checkpoint)
    out = Path(out)
    _check_out(out, source, replace)
    tensors = cast(source.tensors, dtype)
    with publish_folder(out) as temporary:
        _save_model(source.config, tensors, temporary)
        write_tokenizer(source.tokenizer_file, temporary, source.config)
        if fallback:
            write_fallback(temporary, source.config, tensors)
        else:
            write_own_head(temporary)
        write_json(temporary / EXPORT_RECORD, _record(source, tensors, temporary, fallback))
        write_card(temporary, name=out.name)
    (out / MANIFEST).unlink()  # captionbert.json says the same, and leaves the README free to change
    return out


def _check_out(out: Path, source: Source, replace: bool) -> None:
    here, there = out.resolve(), source.model_folder.resolve()
    if here == there or here in there.parents:
        raise InputError(f"{out}: holds the checkpoint that is being exported; choose another folder")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; name a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / EXPORT_RECORD).is_file():
        raise InputError(
            f"{out}: is not empty and is no earlier export (no {EXPORT_RECORD}); choose another folder or empty it"
        )
    if (out / EXPORT_RECORD).is_file():
        record = read_record(out)
        if not replace and record.get("lineage", {}).get("digest") != source.lineage.get("digest"):
            raise InputError(f"{out}: holds an export of another run; choose another folder, or --replace it")
        written = {*record["files"], *ABOUT_EXPORT}
        others = (p.relative_to(out) for p in out.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        strange = sorted(p.as_posix() for p in others if p.as_posix() not in written)
        if strange:
            raise InputError(
                f"{out / strange[0]}: was not written by an export and would be lost; choose another folder, or move it"
            )


def _save_model(config: CaptionBertConfig, tensors: dict[str, Any], out: Path) -> None:
    CaptionBertConfig.register_for_auto_class()
    CaptionBertModel.register_for_auto_class("AutoModel")
    model: Any = CaptionBertModel(config)
    model.to(model_dtype(tensors))
    try:
        model.load_state_dict(tensors, strict=True)
    except ValueError as error:
        raise InputError(f"{out}: not exported: {error}") from None
    model.save_pretrained(out)
    root = Path(__file__).resolve().parent.parent
    check_remote_files(out, root)


def check_remote_files(out: Path, root: Path) -> None:
    """Every remote file was copied, byte for byte, and nothing else.

    Raises:
        InputError: a remote file that no other imports relatively is not copied; the folder would not load.
    """
    copied = sorted(path.name for path in out.glob("*.py"))
    if copied != sorted(REMOTE_FILES):
        wrong = sorted(set(copied) ^ set(REMOTE_FILES))
        raise InputError(f"{out}: remote-code files differ from the list in {__name__}: {', '.join(wrong)}")
    for name in copied:
        if (out / name).read_bytes() != (root / name).read_bytes():
            raise InputError(f"{out / name}: differs from {root / name}")


def identity_files(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that decides a vector, by its path in the folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ABOUT_EXPORT and not _passed_over(path.relative_to(folder))
    }


def _passed_over(path: Path) -> bool:
    # Version control and the bytecode that an import leaves behind.
    return any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _record(source: Source, tensors: dict[str, Any], folder: Path, fallback: bool) -> dict[str, Any]:
    files = identity_files(folder)
    return {
        "kind": EXPORT_KIND,
        "digest": digest_json(files),
        "files": files,
        "source_digest": source.digest,
        "parameters": sum(value.numel() for value in tensors.values()),
        "dtype": str(model_dtype(tensors)).removeprefix("torch."),
        "sentence_transformers_form": "fallback" if fallback else "own head",
        "lineage": source.lineage,
    }


def read_record(folder: str | Path) -> dict[str, Any]:
    """`captionbert.json` of an export. Raises InputError where it is missing or damaged."""
    return read_json(Path(folder) / EXPORT_RECORD, kind=EXPORT_KIND)


def verify_export(folder: str | Path, digest: str | None = None) -> dict[str, Any]:
    """Compare every file with its recorded digest, and the whole with `digest`; no code of the folder is run.

    Args:
        folder: an exported folder.
        digest: the digest that was published or written down; None checks the folder only against its own
            record.

    Returns:
        The record in `captionbert.json`.

    Raises:
        InputError: naming the first file that is changed, missing or not listed, or both digests.
    """
    folder = Path(folder)
    record = read_record(folder)
    found = identity_files(folder)
    for name, expected in record["files"].items():
        if name not in found:
            raise InputError(f"{folder / name}: missing, but listed in {EXPORT_RECORD}; export again")
        if found[name] != expected:
            raise InputError(
                f"{folder / name}: expected SHA-256 {expected}, found {found[name]}; its content was changed"
            )
    unlisted = sorted(set(found) - set(record["files"]))
    if unlisted:
        raise InputError(
            f"{folder / unlisted[0]}: not listed in {EXPORT_RECORD}; it does not belong to this export"
        )
    actual = digest_json(found)
    if record["digest"] != actual or (digest is not None and digest != actual):
        raise InputError(
            f"{folder}: expected digest {digest or record['digest']}, found {actual}; not the folder you mean"
        )
    return record
