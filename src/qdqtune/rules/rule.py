"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qdqtune.rules.placement_draft import Draft


@dataclass(frozen=True)
class Rule:
    """One reason to quantize something, or not to.

    Attributes:
        name: For tables and messages.
        reason: Why the rule is there.
        apply: Looks at a draft and decides what it knows about; it is asked again when others
            have decided more.
    """

    name: str
    reason: str
    apply: Callable[[Draft], None]
