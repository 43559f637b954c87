"""The memory and the semaphores of a kernel that runs, and the copies that are in flight.

JAX makes a `SharedMemory` when a kernel starts, and drops it when the kernel has ended.  `Memory`
takes its place.  It decides when copies run, and knows what everything is called.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from jax._src import source_info_util
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
from jax._src.pallas.mosaic.interpret import shared_memory

from rpagen.evidence.interpreter.errors import DeadlockError, LeftoverError
from rpagen.evidence.interpreter.races import Races
from rpagen.evidence.interpreter.views import RefView

# Memory space, id, device, core.
BufferKey = tuple[str, int, int, int]

DmaExecutionMode = Literal["on_wait", "eager", "random"]


@dataclasses.dataclass
class Settings:
    """How the kernels in a context run, and the exceptions of those that failed."""

    detect_races: bool
    dma_execution_mode: DmaExecutionMode
    random: random.Random
    failures: list[Exception] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A DMA that was started."""

    dma: interpret.DMA
    source_key: BufferKey
    source: RefView
    destination_key: BufferKey
    destination: RefView

    def read(self) -> None:
        """Reads what is to be copied, for a write that comes later."""
        self.dma.execute_read()  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        return (
            f"the copy of {self.source} to {self.destination}"
            f" that is started{format_source(self.dma.source_info)}"
        )


@dataclasses.dataclass(eq=False)
class Step:
    """What is left to do of a copy before it signals one semaphore of a core."""

    copy: Copy
    semaphore: Semaphore
    core: int
    run: Callable[[], None]
    due: int | None = None  # the operation before which it is to run, if no wait comes first

    @property
    def is_done(self) -> bool:
        """Whether the copy has come this far, perhaps for the sake of another semaphore."""
        state = self.copy.dma.state
        only_reads = self.run.__name__ == "execute_read"  # for the semaphore of the sender
        return state is interpret.DmaState.COMPLETED or (
            only_reads and state is interpret.DmaState.READ
        )

    def __call__(self) -> None:
        """Runs the step, which then no longer waits for anything."""
        waiting = self.semaphore.tasks[self.core]
        if self in waiting:
            waiting.remove(self)
        self.run()


class Memory(shared_memory.SharedMemory):
    """The shared memory of a kernel."""

    def __init__(self, *, settings: Settings, **fields: Any) -> None:
        super().__init__(**fields)
        self.detect_races = settings.detect_races
        self.settings = settings
        self.races = Races()
        self.copies: dict[int, Copy] = {}
        self.buffer_names: dict[int, str] = {}
        self.semaphore_names: dict[int, str] = {}
        self.running_devices: set[int] = set()
        self._operations = 0
        # The entries of the copies in the vector clocks.  Two copies that share one look ordered,
        # so that it is taken again as late as can be.
        self._clock_entries = itertools.cycle(range(self.num_cores, self.vector_clock_size))

    # What a kernel refers to.

    def key(self, memory_space: Any, buffer_id: Any, device_id: Any, core_id: Any) -> BufferKey:
        """Returns the key of a buffer in `mem`."""
        space = interpret.TPU_MEMORY_SPACE_NAMES[int(memory_space)]
        core_id = interpret._local_core_id_or_zero_if_hbm(int(core_id), space)
        return (space, int(buffer_id), int(device_id), core_id)

    def view(
        self,
        key: BufferKey,
        transforms: Sequence[Any],
        source_info: source_info_util.SourceInfo | None,
        operand: str | None = None,
    ) -> RefView:
        """Returns the elements that an access touches.

        Args:
          key: the key of the buffer.
          transforms: those of the ref.
          source_info: where in the kernel the access is.
          operand: whose block is copied, if the interpreter makes the access.
        """
        space, buffer_id, _, _ = key
        buffer = self.mem[key]
        assert isinstance(buffer, shared_memory.Buffer)
        name = operand or self.buffer_names.get(buffer_id, f"buffer {buffer_id}")
        try:
            return RefView.of(buffer.content, transforms, name)
        except IndexError as error:
            block = "" if operand is None else f" for the block of operand {operand!r}"
            raise IndexError(
                f"out-of-bounds access in {space}{block}{format_source(source_info)}: {error}"
            ) from None

    def deallocate_buffer(self, key: Any, *args: Any, **kwargs: Any) -> None:
        """Frees a buffer whose scope ends.

        Raises:
          LeftoverError: if a copy from or to it is in flight.
        """
        for step in self.steps():
            if key in (step.copy.source_key, step.copy.destination_key):
                raise LeftoverError(
                    f"the scope of {self.buffer_names.get(key[1], key[1])} ends before"
                    f" {step.copy} was waited for"
                )
        super().deallocate_buffer(key, *args, **kwargs)

    # When copies run.

    def append_semaphore_task(
        self, semaphore_id: int, global_core_id: int, task: Callable[[], None]
    ) -> None:
        """Takes over a copy that starts, once for each semaphore that it will signal."""
        dma: interpret.DMA = task.__self__  # type: ignore[attr-defined]
        copy = self.copies.get(dma.id)
        if copy is None:
            copy = self.copies[dma.id] = self._copy(dma)
        if not copy.source.nbytes and not copy.destination.nbytes:
            return  # It moves nothing and signals nothing.
        semaphore: Any = self._unsafe_get_semaphore(semaphore_id)
        semaphore.copies.append(copy)
        step = Step(copy, semaphore, global_core_id, task)
        if self.settings.dma_execution_mode == "eager":
            step()
            return
        semaphore.enqueue_task(step, global_core_id)
        if self.settings.dma_execution_mode == "random":
            rng = self.settings.random
            # At once, or not before a wait, or at any time in between: the powers of two make a
            # few operations as likely as many.
            delay = rng.choice([0, None, rng.randrange(2 ** rng.randrange(1, 10))])
            step.due = None if delay is None else self._operations + delay
            self._run_what_is_due()

    def get_semaphores_and_increment_clock(
        self, sem_ids: Sequence[int | None], global_core_id: int
    ) -> Any:
        """Begins every operation of a core, and runs the copies that are due before it."""
        self._operations += 1
        if self.settings.dma_execution_mode == "random":
            self._run_what_is_due()
        return super().get_semaphores_and_increment_clock(sem_ids, global_core_id)

    def _run_what_is_due(self) -> None:
        due = [
            step for step in self.steps() if step.due is not None and step.due <= self._operations
        ]
        self.settings.random.shuffle(due)
        for step in due:
            step.due = None
            # A copy may have read long before it writes.
            if self.settings.random.random() < 0.3:
                step.copy.read()
            else:
                step()

    def next_step(self, semaphore: Semaphore, core: int) -> Step | None:
        """Returns what to run when a wait on a semaphore is not met, if anything may help."""
        own = semaphore.steps(core)
        if not own:
            return None
        if self.settings.dma_execution_mode != "random":
            return own[-1]
        rng = self.settings.random
        return rng.choice(own if rng.random() < 0.5 else list(self.steps()))

    def steps(self) -> Iterator[Step]:
        """Returns everything that is left to do of the copies in flight."""
        for semaphore in self.semaphores():
            for core in range(self.num_cores):
                yield from semaphore.steps(core)

    def _copy(self, dma: interpret.DMA) -> Copy:
        source_key = self.key(
            dma.src_memory_space, dma.src_buffer_id, dma.src_device_id, dma.src_local_core_id
        )
        destination_key = self.key(
            dma.dst_memory_space, dma.dst_buffer_id, dma.dst_device_id, dma.dst_local_core_id
        )
        return Copy(
            dma,
            source_key,
            self.view(source_key, dma.src_transforms, dma.source_info),
            destination_key,
            self.view(destination_key, dma.dst_transforms, dma.source_info),
        )

    def semaphores(self) -> list[Semaphore]:
        """Returns every semaphore."""
        semaphores: list[Any] = [*self.sem.values(), *self.fixed_id_sem.values()]
        return semaphores

    # What a kernel leaves behind.

    def check_leftovers(self, device_id: int) -> None:
        """Checks that a kernel which has ended on a device waited for all that it started.

        Raises:
          LeftoverError: if it did not.
        """
        leftovers = [
            f"\n  {semaphore.describe_leftover(core)}"
            for semaphore in self.semaphores()
            for core in self.get_global_core_ids(device_id)
            if semaphore.outstanding(core)
        ]
        if leftovers:
            raise LeftoverError(f"the kernel ends without a wait for:{''.join(leftovers)}")

    def set_failed(self, exception: Exception, *args: Any, **kwargs: Any) -> None:
        """Notes an exception that ends the kernel."""
        self.settings.failures.append(exception)
        super().set_failed(exception, *args, **kwargs)

    # Vector clocks.

    def get_random_virtual_device_id(self) -> int:
        """Returns the entry of a new copy in the vector clocks."""
        return next(self._clock_entries)

    def learn(self, core: int, clocks: Iterable[np.ndarray]) -> None:
        """Makes a core know of everything that these clocks know of."""
        of_cores: Any = self.clocks  # By the numbers of the cores, up to JAX 0.10.
        known = clock_values(
            (of_cores if isinstance(of_cores, list) else [*of_cores.values()])[core]
        )
        for clock in clocks:
            np.maximum(known, clock, out=known)


class Semaphore(shared_memory.Semaphore):
    """A semaphore, which cannot be waited for in vain.

    What a wait orders.  A semaphore counts, and does not say who signalled: as long as a byte is
    outstanding, it may be one of any copy.  So only a wait for the last of them tells that all of
    them have completed, whichever of them the interpreter has run by then.
    """

    shared_memory: Memory

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Since nothing was outstanding: the copies that started, and the clocks of the signals.
        self.copies: list[Copy] = []
        self.signals: list[np.ndarray] = []

    def __str__(self) -> str:
        return self.shared_memory.semaphore_names.get(self.id, f"semaphore {self.id}")

    def steps(self, core: int) -> list[Step]:
        """Returns what will signal the semaphore of a core, in the order in which it started."""
        tasks: list[Any] = self.tasks[core]
        return [step for step in tasks if not step.is_done]

    def outstanding(self, core: int) -> int:
        """Returns how much is left to wait for: what was signalled, and what will be."""
        in_flight = sum(step.copy.source.nbytes for step in self.steps(core))
        return int(self.count_by_core[core]) + in_flight

    def describe_leftover(self, core: int) -> str:
        """Describes what is outstanding, and the last copies that can account for it."""
        left = self.outstanding(core)
        if not self.copies:
            return f"a count of {left} on {self}"
        copies: list[Copy] = []
        for copy in reversed(self.copies):
            if sum(each.source.nbytes for each in copies) >= left:
                break
            copies.append(copy)
        return f"{left} bytes on {self}, as of {', '.join(map(str, copies))}"

    def signal(self, inc: Any, global_core_id: Any, clock: Any, *args: Any, **kwargs: Any) -> None:
        """Adds to the count of a core."""
        super().signal(inc, global_core_id, clock, *args, **kwargs)
        if clock is not None and self.num_cores == 1:
            self.signals.append(clock_values(clock).copy())

    def wait(
        self,
        value: Any,
        global_core_id: Any,
        *,
        has_tasks: bool = False,
        logging_info: Any = None,
    ) -> None:
        """Takes from the count of a core, as soon as it is large enough.

        Raises:
          DeadlockError: if it never will be.  A single core signals itself only through its own
            copies, so that nothing is left to wait for once they have run.
        """
        if value == 0:
            return  # This orders nothing.
        if self.num_cores > 1:
            super().wait(value, global_core_id, has_tasks=has_tasks, logging_info=logging_info)
            return
        core, memory = int(global_core_id), self.shared_memory
        while self.count_by_core[core] < value:
            step = memory.next_step(self, core)
            if step is None:
                raise DeadlockError(self._describe_deadlock(value, core, has_tasks, logging_info))
            step()
        self.count_by_core[core] -= value
        if not self.outstanding(core):
            memory.learn(core, self.signals)
            self.signals.clear()
            self.copies.clear()

    def _describe_deadlock(self, value: int, core: int, in_bytes: bool, logging_info: Any) -> str:
        source_info = None if logging_info is None else logging_info.source_info
        others = [
            f"{semaphore} has {semaphore.outstanding(core)}"
            for semaphore in self.shared_memory.semaphores()
            if semaphore is not self and semaphore.outstanding(core)
        ]
        return (
            f"the wait for {value}{' bytes' if in_bytes else ''} on {self}"
            f"{format_source(source_info)} can never be met: its count is"
            f" {self.count_by_core[core]}, and no copy that signals it is in flight"
            f"{'; ' if others else ''}{', '.join(others)}"
        )


def format_source(source_info: source_info_util.SourceInfo | None) -> str:
    """Returns " at ..." for a place in a kernel, and nothing where it is not known."""
    return "" if source_info is None else f" at {source_info_util.summarize(source_info)}"


def clock_values(clock: Any) -> np.ndarray:
    """Returns the entries of a vector clock, which is an array itself up to JAX 0.10."""
    values: np.ndarray = getattr(clock, "clock", clock)
    return values
