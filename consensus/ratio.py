"""Rows of the fit for each coordinate (N/d), judged before hours are spent on embedding instead of after them.

A map from a teacher of width d into a reference of width r is fitted on N rows and needs N/d of 10 for the wider
of the two. N is known once the captions are read; a width at once for packaged teachers and vectors on disk, for
others when the teacher is loaded.
"""

from dataclasses import dataclass, field

from captionbert.consensus.alignment import check_ratio
from captionbert.consensus.captions import Corpus
from captionbert.consensus.sampling import eligible_rows, sample_sizes


@dataclass
class RatioGuard:
    """Refuses a corpus too small for the maps of its teachers as soon as their widths say so.

    Attributes:
        rows: N of the fit to come. reference: name of the teacher that needs no map. force: accept N/d under 10.
        widths: by name of every teacher that will be fitted; None: not known yet.
    """

    rows: int
    reference: str
    force: bool = False
    widths: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, corpus: Corpus, reference: str, *, sample_rows: int, force: bool) -> "RatioGuard":
        """The guard of a fit on at most `sample_rows` rows of `corpus`, still without widths."""
        return cls(sample_sizes(len(eligible_rows(corpus)), sample_rows)[0], reference, force)

    def learn(self, name: str, width: int) -> None:
        """Note the width of a teacher and judge again. Raises InputError as `check`."""
        self.widths[name] = width
        self.check()

    def check(self) -> None:
        """Judge every map by the widths known so far.

        Raises:
            InputError: N/d under 10 for a teacher, unless forced.
        """
        for name in self.widths:
            known = [w for w in (self.widths[name], self.widths.get(self.reference)) if w is not None]
            if name != self.reference and known:
                check_ratio(self.rows, max(known), f"teacher {name}", force=self.force)
