// A chat template in C: each turn under a title, and the assistant's left open.
//
// The request is JSON with `messages`, `add_generation_prompt` and more; json.c beside this file reads what is needed of
// it. The shapes are in tokenloom/c/template_plugin.h; a callee owns its arguments.
#include "json.h"
#include "template_plugin.h"
#include <stdlib.h>
#include <string.h>

typedef template_plugin_string_t string_t;
typedef exports_tokenloom_template_template_plugin_error_t error_t;
typedef exports_tokenloom_template_template_rendered_t rendered_t;

struct buffer {
  char *text;
  size_t size, room;
};

void exports_tokenloom_plugin_lifecycle_describe(exports_tokenloom_plugin_lifecycle_descriptor_t *ret) {
  template_plugin_string_dup(&ret->name, "titled-turns");
  template_plugin_string_dup(&ret->version, "0.1.0");
  template_plugin_string_dup(&ret->summary, "Each turn under a title");
}

static bool fail(error_t *err, tokenloom_types_types_severity_t severity, const char *code, const char *message) {
  err->severity = severity;
  template_plugin_string_dup(&err->code, code);
  template_plugin_string_dup(&err->message, message);
  return false;
}

// There are no settings: anything but an empty object is an error.
bool exports_tokenloom_plugin_lifecycle_configure(string_t *settings,
                                                  exports_tokenloom_plugin_lifecycle_plugin_error_t *err) {
  bool empty = settings->len == 2 && memcmp(settings->ptr, "{}", 2) == 0;
  template_plugin_string_free(settings);
  const char *message = "settings: there are none";
  return empty || fail(err, TOKENLOOM_TYPES_TYPES_SEVERITY_DISABLE_PLUGIN, "invalid-settings", message);
}

// What the model's files say; this template needs nothing of it.
bool exports_tokenloom_template_template_load(exports_tokenloom_template_template_model_info_t *model, error_t *err) {
  (void)err;
  exports_tokenloom_template_template_model_info_free(model);
  return true;
}

static void add(struct buffer *to, const char *text, size_t size) {
  if (to->size + size > to->room) {
    to->room = 2 * (to->size + size);
    to->text = realloc(to->text, to->room);
  }
  memcpy(to->text + to->size, text, size);
  to->size += size;
}

static void add_text(struct buffer *to, const char *text) { add(to, text, strlen(text)); }

// Writes one turn; false when its content is no text.
static bool turn(struct buffer *prompt, size_t *last_turn, const struct json *message) {
  struct json role, content;
  if (!json_member(message, "role", &role) || !json_member(message, "content", &content)) return false;
  size_t role_size, content_size;
  char *role_text = json_string(&role, &role_size), *content_text = json_string(&content, &content_size);
  bool good = role_text && content_text;
  if (good) {
    add_text(prompt, "### ");
    add(prompt, role_text, role_size);
    add_text(prompt, "\n");
    add(prompt, content_text, content_size);
    add_text(prompt, "\n\n");
    bool ours = role_size == 9 && memcmp(role_text, "assistant", 9) == 0;
    bool system = role_size == 6 && memcmp(role_text, "system", 6) == 0;
    if (!ours && !system) *last_turn = prompt->size;
  }
  free(role_text);
  free(content_text);
  return good;
}

static bool render(const struct json *request, struct buffer *prompt, size_t *last_turn, error_t *err) {
  struct json messages, message, open;
  if (!json_member(request, "messages", &messages)) {
    return fail(err, TOKENLOOM_TYPES_TYPES_SEVERITY_REJECT_REQUEST, "request", "there are no messages");
  }
  for (bool more = json_first(&messages, &message); more; more = json_next(&messages, &message)) {
    if (!turn(prompt, last_turn, &message)) {
      // The client gets a 400 with this message.
      return fail(err, TOKENLOOM_TYPES_TYPES_SEVERITY_REJECT_REQUEST, "content", "a message's content must be text");
    }
  }
  bool asked = json_member(request, "add_generation_prompt", &open) && json_is_true(&open);
  if (asked) add_text(prompt, "### assistant\n");
  return true;
}

bool exports_tokenloom_template_template_render(string_t *request_json, rendered_t *ret, error_t *err) {
  struct buffer prompt = {0};
  size_t last_turn = 0;
  struct json request = {(const char *)request_json->ptr, (const char *)request_json->ptr + request_json->len};
  bool good = render(&request, &prompt, &last_turn, err);
  template_plugin_string_free(request_json);
  memset(ret, 0, sizeof *ret);
  if (good) {
    template_plugin_string_dup_n(&ret->prompt, prompt.text, prompt.size);
    template_plugin_string_dup_n(&ret->turn_prefix, prompt.text + last_turn, prompt.size - last_turn);
    ret->starts_in.is_some = true;
    ret->starts_in.val.tag = TOKENLOOM_TYPES_TYPES_CHANNEL_CONTENT;
    ret->stop.ptr = calloc(1, sizeof *ret->stop.ptr);
    ret->stop.len = 1;
    template_plugin_string_dup(&ret->stop.ptr[0], "\n### ");
  }
  free(prompt.text);
  return good;
}
