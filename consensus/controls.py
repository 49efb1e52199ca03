"""Controls: comparisons that could refute a claim.

A control names what is compared and which direction would refute the claim, before a number is seen; one that
no outcome could make fail is refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

from captionbert.artifacts.errors import InputError


@dataclass(frozen=True)
class Control:
    """A comparison that can refute a claim. It declares, before any number is seen, which direction would.

    Attributes:
        name: what was done. statistic: what is compared.
        refuted_when: "not above" (the claim must exceed the control by `margin`) or "not below".
        margin: smallest difference that counts. span: largest possible difference of the statistic.

    Raises:
        ValueError: no direction is declared, or no outcome could refute the claim (or support it).
    """

    name: str
    statistic: str
    refuted_when: Literal["not above", "not below"]
    margin: float
    span: float

    def __post_init__(self) -> None:
        if self.refuted_when not in ("not above", "not below"):
            raise ValueError(
                f"control {self.name!r} declares no direction that would refute it: {self.refuted_when!r}"
            )
        if not -self.span < self.margin < self.span:
            raise ValueError(
                f"control {self.name!r} cannot fail (or cannot hold): margin {self.margin}, largest "
                f"difference {self.span}"
            )

    def holds(self, claim: float, control: float) -> bool:
        """Whether the claim survives; a NaN on either side refutes it."""
        difference = claim - control if self.refuted_when == "not above" else control - claim
        return bool(difference > self.margin)

    def require(self, claim: float, control: float, who: str) -> dict[str, Any]:
        """The comparison for a report.

        Raises:
            InputError: the claim is refuted.
        """
        if not self.holds(claim, control):
            raise InputError(
                f"{who}: {self.statistic} {claim:.4f} is {self.refuted_when} that of {self.name} "
                f"({control:.4f}) by {self.margin:g}: its vectors do not belong to these captions row by "
                "row; embed them again"
            )
        return {
            "name": self.name,
            "statistic": self.statistic,
            "claim": claim,
            "control": control,
            "refuted_when": f"{self.refuted_when} by {self.margin:g}",
            "refuted": False,
        }


SHUFFLED = Control("the same fit on shuffled pairs", "centred cosine out of sample", "not above", 0.02, 2.0)
