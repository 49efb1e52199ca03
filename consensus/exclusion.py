"""Sentences that must not be trained on, by digest: an exclusion file says them without holding them.

line = first 16 hex digits of SHA-256 of normalise(sentence)
"""

import gzip
import re
from hashlib import sha256
from pathlib import Path

from captionbert.artifacts.errors import InputError

_NOT_PLAIN = re.compile(r"[^a-z0-9 ]")


def normalise(text: str) -> str:
    """The form in which evaluation sentences are compared: lower case, only a-z, 0-9 and single spaces."""
    return " ".join(_NOT_PLAIN.sub("", text.lower()).split())


def exclusion_digest(text: str) -> str:
    """First 16 hex digits of SHA-256 of the normalised text: a line of an exclusion file."""
    return sha256(normalise(text).encode()).hexdigest()[:16]


def read_exclusions(path: Path | None) -> frozenset[str]:
    """The digests in a file, 16 hex digits a line, gzipped or not; none for None.

    Raises:
        InputError: there is no such file, it is empty or holds anything else.
    """
    if path is None:
        return frozenset()
    if not path.is_file():
        raise InputError(f"{path}: no such exclusion file; expected lines of 16 hex digits")
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("ascii")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a file of digests, 16 hex digits a line ({error})") from None
    digests = frozenset(text.split())
    bad = next((d for d in digests if not re.fullmatch(r"[0-9a-f]{16}", d)), None)
    if bad is not None or not digests:
        raise InputError(
            f"{path}: expected 16 hex digits a line, found {bad!r}" if bad else f"{path}: it is empty"
        )
    return digests
