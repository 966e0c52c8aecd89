"""Seats shared fairly between askers.

Whoever waits is served round-robin by asker, not first come, first served: a
batch of 50 must not make a neighbour's single request wait for all of them.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue with one lane an asker; lanes take turns, each lane is in order.

    `join`, `pop` and `push_front` are O(1), the others speak of everyone.
    """

    def __init__(self) -> None:
        # In the order of their turns. A plain dict looks for its first key past all
        # that were ever taken from its front.
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self.count = 0  # of those who wait

    def __len__(self) -> int:
        return self.count

    def join(self, account: str, item: T) -> None:
        """Wait at the end of the asker's lane; a new lane is served last."""
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = deque()
        queue.append(item)
        self.count += 1

    def push_front(self, account: str, item: T) -> None:
        """Wait at the head of the asker's lane, which is served next."""
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = deque()
        queue.appendleft(item)
        self._queues.move_to_end(account, last=False)
        self.count += 1

    def pop(self) -> T | None:
        """The next item; its asker goes to the end of the turns."""
        queues = self._queues
        if not queues:
            return None
        account = next(iter(queues))
        queue = queues[account]
        item = queue.popleft()
        self.count -= 1
        if not queue:
            del queues[account]
        elif len(queues) > 1:
            queues.move_to_end(account)
        return item

    def prune(self, gone: Callable[[T], bool]) -> bool:
        """Drop from the heads who has gone; say whether anyone is left who has not."""
        while self._queues:
            account, queue = next(iter(self._queues.items()))
            while queue and gone(queue[0]):
                queue.popleft()
                self.count -= 1
            if queue:
                return True
            del self._queues[account]
        return False

    def heads(self) -> Iterator[T]:
        """The next item of each lane; nobody may join or leave meanwhile."""
        return (queue[0] for queue in self._queues.values())

    def pop_all(self) -> list[T]:
        """Everything that waits, lane by lane; nobody waits afterwards."""
        items = list(self)
        self._queues.clear()
        self.count = 0
        return items

    def __iter__(self) -> Iterator[T]:
        """Lane by lane; nobody may join or leave meanwhile."""
        return (item for queue in self._queues.values() for item in queue)
