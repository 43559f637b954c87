"""Race detection: accesses to the same memory that no wait orders."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from rpagen.evidence.interpreter.errors import RaceError
from rpagen.evidence.interpreter.views import RefView


@dataclasses.dataclass(frozen=True)
class Access:
    """A read or a write that happened.

    Every core and every copy in flight has an entry of its own in the vector clocks, which it
    advances with each access.  An access is therefore known to whoever has a clock that says, in
    this entry, no less than the time of the access.
    """

    kind: Literal["read", "write"]
    view: RefView
    entry: int
    time: int
    doer: Any  # printed in messages

    def __str__(self) -> str:
        return f"{self.kind} of {self.view} by {self.doer}"


class Races:
    """The accesses to each buffer of a kernel so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accesses: dict[Hashable, list[Access]] = collections.defaultdict(list)

    def note(self, buffer: Hashable, access: Access, clock: Sequence[int]) -> None:
        """Notes an access for later ones.

        Args:
          buffer: which buffer the view of the access is into.
          access: the access.
          clock: what the doer of the access knows, its own entry included.

        Raises:
          RaceError: if the access races with an earlier one.
        """
        with self._lock:
            for other in self._accesses[buffer]:
                if (
                    other.time > clock[other.entry]
                    and "write" in (access.kind, other.kind)
                    and access.view.overlaps(other.view)
                ):
                    raise RaceError(
                        "race between two accesses that nothing orders:\n"
                        f"  {access}\n  {other}, which ran first this time"
                    )
            self._accesses[buffer].append(access)
