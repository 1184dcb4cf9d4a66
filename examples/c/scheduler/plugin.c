// First come, first served, in C: requests get their prompt computed in order of arrival, as far as a step has room.
//
// The host keeps the truth and cuts whatever is too much, so a policy may be as simple as this one: it remembers the
// queue from the deltas and answers with grants. Decoding requests need none. The rules are in docs/protocols.md,
// section 1; the shapes in tokenloom/c/scheduler_plugin.h.
#include "scheduler_plugin.h"
#include <stdlib.h>
#include <string.h>

typedef exports_tokenloom_scheduler_scheduler_delta_t delta_t;
typedef exports_tokenloom_scheduler_scheduler_decision_t decision_t;
typedef exports_tokenloom_scheduler_scheduler_arrival_t arrival_t;
typedef exports_tokenloom_scheduler_scheduler_grant_t grant_t;

struct request {
  uint64_t arrived_us;
  uint32_t slot, prompt, cached, computed, emitted, granted;
  bool running;
};

// What the host calls a policy: the queue, eldest first.
struct exports_tokenloom_scheduler_scheduler_policy_t {
  struct request *queue;
  size_t count, room;
};
typedef struct exports_tokenloom_scheduler_scheduler_policy_t policy_t;

void exports_tokenloom_plugin_lifecycle_describe(exports_tokenloom_plugin_lifecycle_descriptor_t *ret) {
  scheduler_plugin_string_dup(&ret->name, "first-come");
  scheduler_plugin_string_dup(&ret->version, "0.1.0");
  scheduler_plugin_string_dup(&ret->summary, "First come, first served, in C");
}

// There are no settings: anything but an empty object is an error.
bool exports_tokenloom_plugin_lifecycle_configure(scheduler_plugin_string_t *settings,
                                                  exports_tokenloom_plugin_lifecycle_plugin_error_t *err) {
  bool empty = settings->len == 2 && memcmp(settings->ptr, "{}", 2) == 0;
  scheduler_plugin_string_free(settings);
  if (empty) return true;
  err->severity = TOKENLOOM_TYPES_TYPES_SEVERITY_DISABLE_PLUGIN;
  scheduler_plugin_string_dup(&err->code, "invalid-settings");
  scheduler_plugin_string_dup(&err->message, "settings: there are none");
  return false;
}

static struct request *find(policy_t *self, uint32_t slot) {
  for (size_t i = 0; i < self->count; i++) {
    if (self->queue[i].slot == slot) return &self->queue[i];
  }
  return NULL;
}

static void leave(policy_t *self, uint32_t slot) {
  struct request *gone = find(self, slot);
  if (!gone) return;
  size_t after = self->count - (size_t)(gone - self->queue) - 1;
  memmove(gone, gone + 1, after * sizeof *gone);
  self->count--;
}

static struct request *enter(policy_t *self, const arrival_t *arrival) {
  if (self->count == self->room) {
    self->room = self->room ? 2 * self->room : 64;
    self->queue = realloc(self->queue, self->room * sizeof *self->queue);
  }
  // A snapshot's requests come in the order of their slots.
  size_t at = self->count++;
  for (; at > 0 && self->queue[at - 1].arrived_us > arrival->arrived_us; at--) self->queue[at] = self->queue[at - 1];
  struct request *new = &self->queue[at];
  *new = (struct request){.arrived_us = arrival->arrived_us,
                          .slot = arrival->slot,
                          .prompt = arrival->prompt_tokens,
                          .cached = arrival->cached_tokens};
  return new;
}

// Takes in what changed, in the order that the protocol gives.
static void apply(policy_t *self, const delta_t *delta) {
  for (size_t i = 0; i + 2 < delta->finished.len; i += 3) leave(self, delta->finished.ptr[i]);
  for (size_t i = 0; i + 1 < delta->clamped.len; i += 2) {
    struct request *cut = find(self, delta->clamped.ptr[i]);
    if (cut) cut->granted = delta->clamped.ptr[i + 1];
  }
  // What was granted and not taken back is on a seat now.
  for (size_t i = 0; i < self->count; i++) {
    self->queue[i].running |= self->queue[i].granted > 0;
    self->queue[i].granted = 0;
  }
  for (size_t i = 0; i < delta->preempted.len; i++) {
    struct request *waits = find(self, delta->preempted.ptr[i]);
    if (waits) waits->running = false, waits->computed = 0;
  }
  for (size_t i = 0; i < delta->arrived.len; i++) enter(self, &delta->arrived.ptr[i]);
  for (size_t i = 0; i + 2 < delta->progress.len; i += 3) {
    struct request *moved = find(self, delta->progress.ptr[i]);
    if (moved) moved->computed = delta->progress.ptr[i + 1], moved->emitted = delta->progress.ptr[i + 2];
  }
}

// Tokens to compute before the next one can be sampled; 0 for a request that decodes.
static uint32_t need(const struct request *request) {
  if (request->running) return request->computed < request->prompt ? request->prompt - request->computed : 0;
  uint32_t all = request->prompt + request->emitted;
  uint32_t have = request->computed || request->emitted ? request->computed : request->cached;
  return have < all ? all - have : 1;
}

static void decide(policy_t *self, const delta_t *delta, decision_t *ret) {
  uint32_t tokens = delta->limits.token_budget, seats = delta->limits.free_seats, pages = delta->limits.free_pages;
  uint32_t page = delta->limits.page_tokens ? delta->limits.page_tokens : 1;
  for (size_t i = 0; i < self->count; i++) {
    // Each decoding request takes one token.
    if (tokens > 0 && need(&self->queue[i]) == 0) tokens--;
  }
  grant_t *grants = malloc((self->count + 1) * sizeof *grants);
  size_t count = 0;
  bool full = false;
  for (size_t i = 0; i < self->count && tokens > 0; i++) {
    struct request *request = &self->queue[i];
    uint32_t wants = need(request);
    if (wants == 0) continue;
    if (!request->running) {
      uint32_t needs_pages = (wants + page) / page + 1;
      // Nobody overtakes the first one that finds no room; whoever has a seat goes on.
      full |= seats == 0 || needs_pages > pages;
      if (full) continue;
      seats--, pages -= needs_pages;
    }
    uint32_t gets = wants < tokens ? wants : tokens;
    tokens -= gets;
    request->granted = gets;
    grants[count++] = (grant_t){.slot = request->slot, .tokens = gets};
  }
  memset(ret, 0, sizeof *ret);
  ret->grant.ptr = grants;
  ret->grant.len = count;
  // The bindings free lists that are not empty.
  if (count == 0) free(grants);
}

exports_tokenloom_scheduler_scheduler_own_policy_t exports_tokenloom_scheduler_scheduler_constructor_policy(void) {
  return exports_tokenloom_scheduler_scheduler_policy_new(calloc(1, sizeof(policy_t)));
}

void exports_tokenloom_scheduler_scheduler_policy_destructor(policy_t *self) {
  free(self->queue);
  free(self);
}

void exports_tokenloom_scheduler_scheduler_method_policy_resync(
    policy_t *self, exports_tokenloom_scheduler_scheduler_snapshot_t *full) {
  self->count = 0;
  for (size_t i = 0; i < full->seats.len; i++) {
    const exports_tokenloom_scheduler_scheduler_seat_t *seat = &full->seats.ptr[i];
    struct request *request = enter(self, &seat->request);
    request->computed = seat->computed;
    request->emitted = seat->emitted;
    request->running = seat->state == EXPORTS_TOKENLOOM_SCHEDULER_SCHEDULER_STATE_PREFILLING ||
                       seat->state == EXPORTS_TOKENLOOM_SCHEDULER_SCHEDULER_STATE_DECODING;
  }
  exports_tokenloom_scheduler_scheduler_snapshot_free(full);
}

void exports_tokenloom_scheduler_scheduler_method_policy_step(policy_t *self, delta_t *delta, decision_t *ret) {
  apply(self, delta);
  decide(self, delta, ret);
  exports_tokenloom_scheduler_scheduler_delta_free(delta);
}
