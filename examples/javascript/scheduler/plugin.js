// First come, first served: requests get their prompt computed in order of arrival, as far as a step has room.
//
// The host keeps the truth and cuts whatever is too much, so a policy may be as simple as this one: it remembers the queue
// from the deltas and answers with grants. Decoding requests need none. Packed lists come as Uint32Array, 64-bit numbers as
// BigInt. A JavaScript engine is too slow for a busy GPU; this is for trying out an idea, and for small machines.

export const lifecycle = {
  describe: () => ({ name: 'first-come', version: '0.1.0', summary: 'First come, first served, in JavaScript' }),

  configure(settingsJson) {
    const [key] = Object.keys(JSON.parse(settingsJson));
    if (key !== undefined) {
      throw { severity: 'disable-plugin', code: 'invalid-settings', message: `settings: unknown key ${key}` };
    }
  },
};

function* groups(packed, size) {
  for (let at = 0; at + size <= packed.length; at += size) yield packed.slice(at, at + size);
}

// Tokens to compute before the next one can be sampled; 0 for a request that decodes.
function need(request) {
  if (request.running) return Math.max(0, request.prompt - request.computed);
  const have = request.computed || request.emitted ? request.computed : request.cached;
  return Math.max(1, request.prompt + request.emitted - have);
}

const fresh = (arrival) => ({
  prompt: arrival.promptTokens,
  cached: arrival.cachedTokens,
  computed: 0,
  emitted: 0,
  granted: 0,
  running: false,
});

class Policy {
  constructor() {
    // By slot, in order of arrival.
    this.queue = new Map();
  }

  resync(full) {
    this.queue.clear();
    for (const { request, state, computed, emitted } of full.seats) {
      const running = state === 'prefilling' || state === 'decoding';
      this.queue.set(request.slot, { ...fresh(request), computed, emitted, running });
    }
  }

  step(delta) {
    this.apply(delta);
    return this.decide(delta.limits);
  }

  // Takes in what changed, in the order that the protocol gives.
  apply(delta) {
    const change = (slot, fields) => {
      const request = this.queue.get(slot);
      if (request) Object.assign(request, fields);
    };
    for (const [slot] of groups(delta.finished, 3)) this.queue.delete(slot);
    for (const [slot, granted] of groups(delta.clamped, 2)) change(slot, { granted });
    for (const request of this.queue.values()) {
      // What was granted and not taken back is on a seat now.
      request.running ||= request.granted > 0;
      request.granted = 0;
    }
    for (const slot of delta.preempted) change(slot, { running: false, computed: 0 });
    for (const arrival of delta.arrived) this.queue.set(arrival.slot, fresh(arrival));
    for (const [slot, computed, emitted] of groups(delta.progress, 3)) change(slot, { computed, emitted });
  }

  decide(limits) {
    const grant = [];
    let { tokenBudget: tokens, freeSeats: seats, freePages: pages } = limits;
    // Each decoding request takes one token.
    for (const request of this.queue.values()) tokens -= need(request) === 0 ? 1 : 0;
    for (const [slot, request] of this.queue) {
      if (tokens <= 0) break;
      const wants = need(request);
      if (wants === 0) continue;
      if (!request.running) {
        const needsPages = Math.floor(wants / limits.pageTokens) + 2;
        // Nobody overtakes the first one that finds no room.
        if (seats === 0 || needsPages > pages) break;
        seats -= 1;
        pages -= needsPages;
      }
      request.granted = Math.min(wants, tokens);
      tokens -= request.granted;
      grant.push({ slot, tokens: request.granted });
    }
    return { grant, hold: [], preempt: [], victims: [], refuse: [], draft: [], ext: [] };
  }
}

export const scheduler = { Policy };
