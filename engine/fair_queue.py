"""Seats shared fairly between askers.

Whoever waits is served round-robin by asker, not first come, first served: a
batch of 50 must not make a neighbour's single request wait for all of them.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turnstile(Generic[T]):
    """A queue with one lane an asker; lanes take turns, each lane is in order.

    `join`, `take` and `put_back` are O(1), the others speak of everyone.
    """

    def __init__(self) -> None:
        # In the order of their turns. A plain dict looks for its first key past all
        # that were ever taken from its front.
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self.count = 0  # of those who wait

    def __len__(self) -> int:
        return self.count

    def join(self, asker: str, item: T) -> None:
        """Wait at the end of the asker's lane; a new lane is served last."""
        lane = self._lanes.get(asker)
        if lane is None:
            lane = self._lanes[asker] = deque()
        lane.append(item)
        self.count += 1

    def put_back(self, asker: str, item: T) -> None:
        """Wait at the head of the asker's lane, which is served next."""
        lane = self._lanes.get(asker)
        if lane is None:
            lane = self._lanes[asker] = deque()
        lane.appendleft(item)
        self._lanes.move_to_end(asker, last=False)
        self.count += 1

    def take(self) -> T | None:
        """The next item; its asker goes to the end of the turns."""
        lanes = self._lanes
        if not lanes:
            return None
        asker = next(iter(lanes))
        lane = lanes[asker]
        item = lane.popleft()
        self.count -= 1
        if not lane:
            del lanes[asker]
        elif len(lanes) > 1:
            lanes.move_to_end(asker)
        return item

    def prune(self, gone: Callable[[T], bool]) -> bool:
        """Drop from the heads who has gone; say whether anyone is left who has not."""
        while self._lanes:
            asker, lane = next(iter(self._lanes.items()))
            while lane and gone(lane[0]):
                lane.popleft()
                self.count -= 1
            if lane:
                return True
            del self._lanes[asker]
        return False

    def heads(self) -> Iterator[T]:
        """The next item of each lane; nobody may join or leave meanwhile."""
        return (lane[0] for lane in self._lanes.values())

    def take_all(self) -> list[T]:
        """Everything that waits, lane by lane; nobody waits afterwards."""
        items = list(self)
        self._lanes.clear()
        self.count = 0
        return items

    def __iter__(self) -> Iterator[T]:
        """Lane by lane; nobody may join or leave meanwhile."""
        return (item for lane in self._lanes.values() for item in lane)
