"""What a drill found: each probe with its verdict."""

from dataclasses import dataclass, field


@dataclass
class Findings:
    """The probes of one drill."""

    probes: int = 0
    problems: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def note(self, what: str, *, holds: bool, seen: object = "") -> None:
        """Count a probe; what does not hold is a problem, with what was seen."""
        self.probes += 1
        if not holds:
            self.problems.append(f"{what}: {str(seen)[:300]}")
