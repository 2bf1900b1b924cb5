"""What the chess domain is set to: how moves are judged, read and shown. Needs no chess library."""

from __future__ import annotations

from dataclasses import dataclass

from whale.errors import ConfigError


@dataclass(frozen=True)
class Rules:
    """strict: only the listed move is right; else any move that mates on the spot is right too. san: moves in SAN are
    read beside UCI. suffixes: SAN is shown with its ``+`` and ``#``. retries: unreadable texts, and illegal moves,
    that are forgiven at each position (0 or more, of each kind)."""

    strict: bool = False
    san: bool = False
    suffixes: bool = True
    retries: int = 1

    def __post_init__(self) -> None:
        for name in ("strict", "san", "suffixes"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"domain chess, option {name}: true or false is expected, found {getattr(self, name)!r}"
                )
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ConfigError(f"domain chess, option retries: a number >= 0 is expected, found {self.retries!r}")

    @property
    def version(self) -> str:
        """Names these settings in every rollout."""
        right = "strict" if self.strict else "mates"
        read = "san" if self.san else "uci"
        shown = "suffixes" if self.suffixes else "bare"
        return f"chess-1-{right}-{read}-{shown}-{self.retries}"

    def shown(self, san: str) -> str:
        """A move in SAN as harnesses may see it."""
        return san if self.suffixes else san.rstrip("+#")
