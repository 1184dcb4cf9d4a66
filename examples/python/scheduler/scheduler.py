"""The policy. The file has the interface's name, which is where exported resources are looked for.

The host keeps the truth and cuts whatever is too much, so a policy may be as simple as this one: it remembers the queue
from the deltas and answers with grants. Decoding requests need none.
"""

from dataclasses import dataclass

from wit_world.exports import scheduler as wit


@dataclass
class Request:
    prompt: int
    cached: int
    computed: int = 0
    emitted: int = 0
    granted: int = 0
    running: bool = False

    def need(self) -> int:
        """Tokens to compute before the next one can be sampled; 0 for a request that decodes."""
        if self.running:
            return max(0, self.prompt - self.computed)
        have = self.computed if self.computed or self.emitted else self.cached
        return max(1, self.prompt + self.emitted - have)


def groups(packed: list[int], size: int) -> list[tuple[int, ...]]:
    return list(zip(*[iter(packed)] * size))


class Policy(wit.Policy):
    def __init__(self) -> None:
        # By slot, in order of arrival.
        self.queue: dict[int, Request] = {}

    def resync(self, full: wit.Snapshot) -> None:
        self.queue = {}
        for seat in full.seats:
            running = seat.state in (wit.State.PREFILLING, wit.State.DECODING)
            it = seat.request
            self.queue[it.slot] = Request(it.prompt_tokens, it.cached_tokens, seat.computed, seat.emitted, 0, running)

    def step(self, delta: wit.Delta) -> wit.Decision:
        self.apply(delta)
        return self.decide(delta.limits)

    def apply(self, delta: wit.Delta) -> None:
        """Takes in what changed, in the order that the protocol gives."""
        for slot, _, _ in groups(delta.finished, 3):
            self.queue.pop(slot, None)
        for slot, tokens in groups(delta.clamped, 2):
            if slot in self.queue:
                self.queue[slot].granted = tokens
        for request in self.queue.values():
            # What was granted and not taken back is on a seat now.
            request.running |= request.granted > 0
            request.granted = 0
        for slot in delta.preempted:
            self.queue[slot].running, self.queue[slot].computed = False, 0
        for arrival in delta.arrived:
            self.queue[arrival.slot] = Request(arrival.prompt_tokens, arrival.cached_tokens)
        for slot, computed, emitted in groups(delta.progress, 3):
            if slot in self.queue:
                self.queue[slot].computed, self.queue[slot].emitted = computed, emitted

    def decide(self, limits: wit.Limits) -> wit.Decision:
        seats, pages, grants = limits.free_seats, limits.free_pages, []
        # Each decoding request takes one token.
        tokens = limits.token_budget - sum(request.need() == 0 for request in self.queue.values())
        for slot, request in self.queue.items():
            need = request.need()
            if tokens <= 0:
                break
            if need == 0:
                continue
            if not request.running:
                needs_pages = need // limits.page_tokens + 2
                # Nobody overtakes the first one that finds no room.
                if seats == 0 or needs_pages > pages:
                    break
                seats, pages = seats - 1, pages - needs_pages
            request.granted = min(need, tokens)
            tokens -= request.granted
            grants.append(wit.Grant(slot, request.granted))
        return wit.Decision(grants, [], [], [], [], [], [])
