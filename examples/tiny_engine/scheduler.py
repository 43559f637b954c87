"""What the next step computes: which requests, how many tokens of each, in which pages."""

from __future__ import annotations

import dataclasses

from .pages import PagePool


@dataclasses.dataclass(frozen=True)
class Limits:
    """The sizes of a step and of the cache. They are shapes: the step is compiled for them."""

    sequences: int = 4  # rows of a step
    tokens: int = 32  # new tokens of a step, of all sequences together
    chunk: int = 16  # new tokens of a sequence in a step: longer prompts take several
    page_size: int = 16
    pages_per_sequence: int = 6
    pages: int = 10  # in the cache


@dataclasses.dataclass(eq=False)
class Request:
    """A prompt to be continued by `wanted` tokens, and how far that has come."""

    name: int
    prompt: list[int]
    wanted: int
    generated: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0  # its first tokens, whose keys and values are in the cache
    # They hold the cached tokens. A finished request has given them back, and remembers them.
    pages: list[int] = dataclasses.field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was generated so far."""
        return self.prompt + self.generated

    @property
    def pending(self) -> int:
        """How many tokens have to go through the model before the next one is known."""
        return len(self.prompt) + len(self.generated) - self.cached


@dataclasses.dataclass(frozen=True)
class Share:
    """A request's part in a step: its next `count` pending tokens."""

    request: Request
    count: int

    @property
    def is_last(self) -> bool:
        """Whether nothing is pending after it, so that the step computes a new token."""
        return self.count == self.request.pending


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The sequences of one step, by what the kernel does with them.

    To the kernel a decode is one new token, whoever needs it: the last token of a prompt too.
    Prefills are whole chunks, whose number of query blocks is known when the kernel is compiled;
    what is shorter is mixed, and costs as many query blocks as it has.
    """

    decode: list[Share]
    prefill: list[Share]
    mixed: list[Share]
    preempted: list[Request]
    pages_in_use: int

    @property
    def tokens(self) -> int:
        """New tokens of all sequences together."""
        return sum(share.count for share in self.shares)

    @property
    def shares(self) -> list[Share]:
        """In the order that the kernel wants."""
        return self.decode + self.prefill + self.mixed


class Scheduler:
    """First come, first served, in as many tokens, rows and pages as there are."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.pool = PagePool(limits.pages)
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # those that may have pages, the first admitted first

    def add(self, request: Request) -> None:
        """Lets a request wait for its turn.

        Raises:
            ValueError: if it could never run to its end, even alone.
        """
        limits = self.limits
        most = min(limits.pages_per_sequence, limits.pages)
        needed = self._pages_for(len(request.prompt) + request.wanted - 1)
        if not request.prompt or request.wanted < 1 or needed > most:
            raise ValueError(
                f"request {request.name} has a prompt of {len(request.prompt)} tokens and wants"
                f" {request.wanted} more, {needed} pages; expected at least one token each, and at"
                f" most {most} pages"
            )
        self.waiting.append(request)

    def schedule(self) -> Schedule:
        """The next step. Its pages are taken, so it has to run, and `finish` has to follow."""
        self._admit()
        shares: list[Share] = []
        preempted: list[Request] = []
        budget = self.limits.tokens
        # Decodes first: someone is waiting for each of their tokens, and they cost little.
        candidates = sorted(self.running, key=lambda request: request.pending > 1)
        while candidates and budget:
            request = candidates.pop(0)
            count = min(request.pending, self.limits.chunk, budget)
            missing = self._pages_for(request.cached + count) - len(request.pages)
            # Who came first gets what it needs, if need be from all who came later and are not part
            # of the step already, so that every step comes further.
            later = self.running[self.running.index(request) + 1 :]
            taking_part = [share.request for share in shares]
            victims = [other for other in later if other.pages and other not in taking_part]
            while self.pool.free < missing and victims:
                preempted.append(victims.pop())
                self._preempt(preempted[-1])
            candidates = [other for other in candidates if other not in preempted]
            if self.pool.free < missing:
                continue  # it waits for a step in which others finish
            request.pages += [self.pool.take() for _ in range(missing)]
            shares.append(Share(request, count))
            budget -= count
        chunk = self.limits.chunk
        return Schedule(
            decode=[share for share in shares if share.count == 1],
            prefill=[share for share in shares if share.count == chunk > 1],
            mixed=[share for share in shares if share.count not in (1, chunk)],
            preempted=preempted,
            pages_in_use=self.pool.total - self.pool.free,
        )

    def finish(self, schedule: Schedule, tokens: list[int]) -> None:
        """Takes in the results of a step, one next token for each of its shares."""
        for share, token in zip(schedule.shares, tokens, strict=True):
            request, is_last = share.request, share.is_last
            request.cached += share.count
            if not is_last:
                continue  # the token is a guess at one that is known
            request.generated.append(token)
            if len(request.generated) == request.wanted:
                self.running.remove(request)
                self.pool.give_back(request.pages)

    def _admit(self) -> None:
        """Lets requests run in the order in which they came, while one fits as it is now."""
        promised = 0
        while self.waiting and len(self.running) < self.limits.sequences:
            promised += self._pages_for(self.waiting[0].pending)
            if promised > self.pool.free:
                break
            self.running.append(self.waiting.pop(0))

    def _preempt(self, request: Request) -> None:
        """Takes the pages of a request, which will compute all of its tokens again."""
        self.pool.give_back(request.pages)
        request.pages, request.cached = [], 0
        self.running.remove(request)
        self.waiting.insert(0, request)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.page_size)
