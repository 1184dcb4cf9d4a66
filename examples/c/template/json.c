#include "json.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char *space(const char *at, const char *to) {
  while (at < to && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
  return at;
}

static const char *skip_string(const char *at, const char *to) {
  for (at++; at < to && *at != '"'; at++) {
    if (*at == '\\') at++;
  }
  return at < to ? at + 1 : NULL;
}

// The end of the value that begins here; brackets are counted, not nested calls, so depth costs no stack.
static const char *skip(const char *at, const char *to) {
  size_t depth = 0;
  while (at && at < to) {
    if (*at == '"') {
      at = skip_string(at, to);
    } else if (*at == '{' || *at == '[') {
      depth++, at++;
    } else if (*at == '}' || *at == ']') {
      if (depth == 0) return at;
      depth--, at++;
    } else if (depth == 0 && (*at == ',' || *at == ' ' || *at == '\n')) {
      return at;
    } else {
      at++;
      continue;
    }
    if (depth == 0) return at;
  }
  return at;
}

bool json_member(const struct json *object, const char *name, struct json *value) {
  const char *at = space(object->from, object->to), *to = object->to;
  size_t length = strlen(name);
  if (at == to || *at != '{') return false;
  for (at = space(at + 1, to); at < to && *at == '"';) {
    const char *key = at + 1;
    const char *behind = skip_string(at, to);
    if (!behind) return false;
    bool found = (size_t)(behind - key) == length + 1 && memcmp(key, name, length) == 0;
    at = space(behind, to);
    if (at == to || *at != ':') return false;
    at = space(at + 1, to);
    const char *end = skip(at, to);
    if (!end) return false;
    if (found) {
      *value = (struct json){at, end};
      return true;
    }
    at = space(end, to);
    if (at < to && *at == ',') at = space(at + 1, to);
  }
  return false;
}

static bool element_at(const char *at, const char *to, struct json *element) {
  at = space(at, to);
  if (at == to || *at == ']') return false;
  const char *end = skip(at, to);
  if (!end || end == at) return false;
  *element = (struct json){at, end};
  return true;
}

bool json_first(const struct json *array, struct json *element) {
  const char *at = space(array->from, array->to);
  return at < array->to && *at == '[' && element_at(at + 1, array->to, element);
}

bool json_next(const struct json *array, struct json *element) {
  const char *at = space(element->to, array->to);
  return at < array->to && *at == ',' && element_at(at + 1, array->to, element);
}

bool json_is_true(const struct json *value) { return value->to - value->from == 4 && memcmp(value->from, "true", 4) == 0; }

static uint32_t hex4(const char *at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; i++) {
    char c = at[i];
    uint32_t digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
    value = value << 4 | (digit & 15);
  }
  return value;
}

static char *utf8(uint32_t code, char *out) {
  if (code < 0x80) {
    *out++ = (char)code;
  } else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  } else {
    *out++ = (char)(0xf0 | code >> 18);
    *out++ = (char)(0x80 | (code >> 12 & 63));
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  }
  return out;
}

// Decodes the escape behind a backslash and gives what follows it.
static const char *escape(const char *at, const char *to, char **out) {
  static const char from[] = "nrtbf", becomes[] = "\n\r\t\b\f";
  const char *known = memchr(from, *at, sizeof from - 1);
  if (known) *(*out)++ = becomes[known - from];
  if (known || *at != 'u') {
    // Quote, slash and backslash stand for themselves.
    if (!known) *(*out)++ = *at;
    return at + 1;
  }
  if (to - at < 5) return to;
  uint32_t code = hex4(at + 1);
  at += 5;
  bool high = code >= 0xd800 && code < 0xdc00;
  if (high && to - at >= 6 && at[0] == '\\' && at[1] == 'u') {
    uint32_t low = hex4(at + 2);
    code = 0x10000 + ((code & 0x3ff) << 10) + (low & 0x3ff);
    at += 6;
  } else if (code >= 0xd800 && code < 0xe000) {
    // Half a pair is no character.
    code = 0xfffd;
  }
  *out = utf8(code, *out);
  return at;
}

char *json_string(const struct json *value, size_t *size) {
  const char *at = value->from, *to = value->to;
  if (to - at < 2 || *at != '"') return NULL;
  // Decoded text is never longer.
  char *text = malloc((size_t)(to - at)), *out = text;
  for (at++, to--; at < to;) {
    if (*at == '\\' && at + 1 < to) {
      at = escape(at + 1, to, &out);
    } else {
      *out++ = *at++;
    }
  }
  *size = (size_t)(out - text);
  return text;
}
