"""Short calculation problems with a code interpreter."""

from whale.domains.math.domain import MathDomain

__all__ = ["MathDomain"]
