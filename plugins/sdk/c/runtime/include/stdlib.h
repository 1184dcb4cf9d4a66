// The part of the C library that the bindings and most plugins need. There is no more: a plugin has no files, no
// clock and no environment.
#ifndef TOKENLOOM_STDLIB_H
#define TOKENLOOM_STDLIB_H
#include <stddef.h>

void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *old, size_t size);
void free(void *old);
_Noreturn void abort(void);

#endif
