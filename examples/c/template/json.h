// Reads JSON where it lies. The host hands over valid JSON; on anything else the functions say false or NULL.
#ifndef JSON_H
#define JSON_H
#include <stdbool.h>
#include <stddef.h>

// A value: its text, from its first character to behind its last.
struct json {
  const char *from, *to;
};

// The member of an object.
bool json_member(const struct json *object, const char *name, struct json *value);
// The elements of an array, one after the other.
bool json_first(const struct json *array, struct json *element);
bool json_next(const struct json *array, struct json *element);
bool json_is_true(const struct json *value);
// The decoded text of a string in memory that the caller frees; NULL if the value is none.
char *json_string(const struct json *value, size_t *size);

#endif
