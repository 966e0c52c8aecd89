"""A queue that serves accounts in turn (round-robin), not first come, first served.

A batch of 50 from one account must not delay another account's single request.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """One first-in, first-out queue per account; the accounts take turns.

    `join`, `pop` and `push_front` are O(1); the other methods go through the accounts.
    """

    def __init__(self) -> None:
        # In the order of their turns. Not a plain dict: to find its first key, that steps
        # over every entry once deleted from its front.
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self.count = 0  # items of all accounts

    def __len__(self) -> int:
        return self.count

    def join(self, account: str, item: T) -> None:
        """Add to the end of the account's queue. A new account has the last turn."""
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = deque()
        queue.append(item)
        self.count += 1

    def push_front(self, account: str, item: T) -> None:
        """Add to the front of the account's queue, and give the account the next turn."""
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = deque()
        queue.appendleft(item)
        self._queues.move_to_end(account, last=False)
        self.count += 1

    def pop(self) -> T | None:
        """Remove and return the next item, or None. Its account then has the last turn."""
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
        """Drop items for which `gone` is true from the fronts; return whether any item is left.

        Stops at the first item that is not gone.
        """
        while self._queues:
            account, queue = next(iter(self._queues.items()))
            while queue and gone(queue[0]):
                queue.popleft()
                self.count -= 1
            if queue:
                return True
            del self._queues[account]
        return False

    def discard(self, gone: Callable[[T], bool]) -> None:
        """Drop all items for which `gone` is true. The accounts keep their turns."""
        for account, queue in list(self._queues.items()):
            kept = deque(item for item in queue if not gone(item))
            self.count -= len(queue) - len(kept)
            if kept:
                self._queues[account] = kept
            else:
                del self._queues[account]

    def heads(self) -> Iterator[T]:
        """The next item of each account. The queue must not change during iteration."""
        return (queue[0] for queue in self._queues.values())

    def pop_all(self) -> list[T]:
        """Remove and return all items, account by account."""
        items = list(self)
        self._queues.clear()
        self.count = 0
        return items

    def __iter__(self) -> Iterator[T]:
        """All items, account by account. The queue must not change during iteration."""
        return (item for queue in self._queues.values() for item in queue)
