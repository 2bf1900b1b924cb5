"""Questions answered with the help of a search tool over a text corpus."""

from whale.domains.search_qa.domain import SearchQaDomain

__all__ = ["SearchQaDomain"]
