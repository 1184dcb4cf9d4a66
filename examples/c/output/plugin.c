// A reasoning stage for an invented format, in C: what a model writes between `[[` and `]]` is its reasoning.
//
// One stream is one session. `feed` is called once per engine step with that step's events and gives back events: a
// character that may be the first of a marker is held, text inside the marks goes on in the channel `reasoning`, every
// other event is passed on as it came. The shapes are in tokenloom/c/output_plugin.h; a callee owns its arguments.
#include "output_plugin.h"
#include <stdlib.h>
#include <string.h>

typedef exports_tokenloom_output_stage_event_t event_t;
typedef exports_tokenloom_output_stage_list_event_t events_t;
typedef exports_tokenloom_output_stage_request_t request_t;
typedef output_plugin_string_t string_t;

struct exports_tokenloom_output_stage_session_t {
  bool inside;
  // The first character of a marker came, and it may be all that comes.
  bool held;
};
typedef struct exports_tokenloom_output_stage_session_t session_t;

void exports_tokenloom_plugin_lifecycle_describe(exports_tokenloom_plugin_lifecycle_descriptor_t *ret) {
  output_plugin_string_dup(&ret->name, "margin-notes");
  output_plugin_string_dup(&ret->version, "0.1.0");
  output_plugin_string_dup(&ret->summary, "Text between [[ and ]] is reasoning");
}

// There are no settings: anything but an empty object is an error.
bool exports_tokenloom_plugin_lifecycle_configure(string_t *settings,
                                                  exports_tokenloom_plugin_lifecycle_plugin_error_t *err) {
  bool empty = settings->len == 2 && memcmp(settings->ptr, "{}", 2) == 0;
  output_plugin_string_free(settings);
  if (empty) return true;
  err->severity = TOKENLOOM_TYPES_TYPES_SEVERITY_DISABLE_PLUGIN;
  output_plugin_string_dup(&err->code, "invalid-settings");
  output_plugin_string_dup(&err->message, "settings: there are none");
  return false;
}

void exports_tokenloom_output_stage_requires(exports_tokenloom_output_stage_requirements_t *ret) {
  memset(ret, 0, sizeof *ret);
  ret->markers.ptr = calloc(2, sizeof *ret->markers.ptr);
  ret->markers.len = 2;
  output_plugin_string_dup(&ret->markers.ptr[0], "[[");
  output_plugin_string_dup(&ret->markers.ptr[1], "]]");
  // The host follows the span itself, for `reasoning_tokens` and thinking budgets.
  ret->reasoning.ptr = calloc(1, sizeof *ret->reasoning.ptr);
  ret->reasoning.len = 1;
  output_plugin_string_dup(&ret->reasoning.ptr[0].open, "[[");
  output_plugin_string_dup(&ret->reasoning.ptr[0].close, "]]");
  output_plugin_string_dup(&ret->reasoning.ptr[0].forced_close, "]]");
}

bool exports_tokenloom_output_stage_constrain(request_t *request,
                                              exports_tokenloom_output_stage_option_constraint_t *ret,
                                              exports_tokenloom_output_stage_plugin_error_t *err) {
  (void)err;
  exports_tokenloom_output_stage_request_free(request);
  ret->is_some = false;
  return true;
}

exports_tokenloom_output_stage_own_session_t exports_tokenloom_output_stage_constructor_session(request_t *request) {
  session_t *self = calloc(1, sizeof *self);
  // The template may have left the reasoning open.
  self->inside = request->starts_in.is_some && request->starts_in.val.tag == TOKENLOOM_TYPES_TYPES_CHANNEL_REASONING;
  exports_tokenloom_output_stage_request_free(request);
  return exports_tokenloom_output_stage_session_new(self);
}

void exports_tokenloom_output_stage_session_destructor(session_t *self) { free(self); }

static event_t *push(events_t *out) {
  out->ptr = realloc(out->ptr, (out->len + 1) * sizeof *out->ptr);
  event_t *event = &out->ptr[out->len++];
  memset(event, 0, sizeof *event);
  return event;
}

static void emit(const session_t *self, const char *text, size_t size, events_t *out) {
  if (size == 0) return;
  event_t *event = push(out);
  event->tag = EXPORTS_TOKENLOOM_OUTPUT_STAGE_EVENT_TEXT;
  event->val.text.channel.tag =
      self->inside ? TOKENLOOM_TYPES_TYPES_CHANNEL_REASONING : TOKENLOOM_TYPES_TYPES_CHANNEL_CONTENT;
  output_plugin_string_dup_n(&event->val.text.text, text, size);
}

static void read(session_t *self, const string_t *piece, events_t *out) {
  size_t size = piece->len + self->held;
  char *text = malloc(size + 1);
  // What was held is the marker's first character.
  text[0] = self->inside ? ']' : '[';
  memcpy(text + self->held, piece->ptr, piece->len);
  size_t from = 0, at = 0;
  self->held = false;
  while (at < size) {
    char mark = self->inside ? ']' : '[';
    if (text[at] != mark) {
      at++;
    } else if (at + 1 == size) {
      self->held = true;
      size--;
    } else if (text[at + 1] == mark) {
      emit(self, text + from, at - from, out);
      self->inside = !self->inside;
      from = at += 2;
    } else {
      at++;
    }
  }
  emit(self, text + from, size - from, out);
  free(text);
}

bool exports_tokenloom_output_stage_method_session_feed(session_t *self, events_t *events, events_t *ret,
                                                        exports_tokenloom_output_stage_plugin_error_t *err) {
  (void)err;
  *ret = (events_t){0};
  for (size_t i = 0; i < events->len; i++) {
    event_t *event = &events->ptr[i];
    bool is_text = event->tag == EXPORTS_TOKENLOOM_OUTPUT_STAGE_EVENT_TEXT;
    if (is_text && event->val.text.channel.tag == TOKENLOOM_TYPES_TYPES_CHANNEL_CONTENT) {
      read(self, &event->val.text.text, ret);
      exports_tokenloom_output_stage_event_free(event);
    } else {
      // Passed on as it is, strings and all.
      *push(ret) = *event;
    }
  }
  free(events->ptr);
  return true;
}

bool exports_tokenloom_output_stage_method_session_finish(session_t *self,
                                                          exports_tokenloom_output_stage_end_reason_t *reason,
                                                          events_t *ret,
                                                          exports_tokenloom_output_stage_plugin_error_t *err) {
  (void)err;
  *ret = (events_t){0};
  if (self->held) emit(self, self->inside ? "]" : "[", 1, ret);
  self->held = false;
  exports_tokenloom_output_stage_end_reason_free(reason);
  return true;
}
