"""Which pages of the KV cache are free."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """The pages 0 .. total - 1 of the cache; all layers use the same numbers.

    Nothing has to be cleared when a page changes hands: past the keys in `kv_lens`, whatever is
    in a page does not count.
    """

    def __init__(self, total: int):
        self.total = total
        self._free = list(range(total))

    @property
    def free(self) -> int:
        """How many pages are free."""
        return len(self._free)

    def take(self) -> int:
        """A page that nobody else has, the one given back last."""
        return self._free.pop()

    def give_back(self, pages: Iterable[int]) -> None:
        """Frees pages, for others to take.

        Raises:
            ValueError: if one of them is free already.
        """
        for page in pages:
            if page in self._free:
                raise ValueError(f"page {page} is given back twice")
            self._free.append(page)
