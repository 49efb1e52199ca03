"""One progress bar for the whole product: tqdm on a terminal, silent everywhere else."""

from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    desc: str = "",
    unit: str = "it",
    initial: int = 0,
) -> Any:
    """A tqdm bar over `iterable` (or a manual one with `.update`), disabled unless stderr is a terminal."""
    return tqdm(
        iterable, total=total, desc=desc, unit=unit, initial=initial, disable=None, dynamic_ncols=True
    )
