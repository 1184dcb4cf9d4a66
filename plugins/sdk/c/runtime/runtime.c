// A C library of two pages: memory and the string functions that compilers call by themselves. It imports nothing.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)65536)
// Blocks are powers of two from 16 bytes on, each behind a header that names its class.
#define HEADER ((size_t)16)
#define CLASSES 28

struct block {
  struct block *next;
};

extern unsigned char __heap_base;

static struct block *spare[CLASSES];
static uintptr_t heap_at, heap_end;

static unsigned class_of(size_t size) {
  unsigned class = 0;
  while (class < CLASSES && ((size_t)16 << class) < size) class++;
  return class;
}

// A limit that is reached is a trap: the host says which one.
static void *more(size_t size) {
  if (heap_at == 0) {
    heap_at = ((uintptr_t)&__heap_base + 15) & ~(uintptr_t)15;
    heap_end = __builtin_wasm_memory_size(0) * PAGE;
  }
  if (size > heap_end - heap_at) {
    size_t pages = (size - (heap_end - heap_at) + PAGE - 1) / PAGE;
    if (__builtin_wasm_memory_grow(0, pages) == (size_t)-1) abort();
    heap_end += pages * PAGE;
  }
  void *at = (void *)heap_at;
  heap_at += size;
  return at;
}

void *malloc(size_t size) {
  unsigned class = class_of(size);
  if (class == CLASSES) abort();
  struct block *block = spare[class];
  if (block) {
    spare[class] = block->next;
    return block;
  }
  unsigned char *at = more(HEADER + ((size_t)16 << class));
  *(unsigned *)at = class;
  return at + HEADER;
}

void free(void *old) {
  if (!old) return;
  unsigned class = *(unsigned *)((unsigned char *)old - HEADER);
  struct block *block = old;
  block->next = spare[class];
  spare[class] = block;
}

void *calloc(size_t count, size_t size) {
  size_t all;
  if (__builtin_mul_overflow(count, size, &all)) abort();
  return memset(malloc(all), 0, all);
}

void *realloc(void *old, size_t size) {
  if (!old) return malloc(size);
  size_t room = (size_t)16 << *(unsigned *)((unsigned char *)old - HEADER);
  if (size <= room) return old;
  void *new = malloc(size);
  memcpy(new, old, room);
  free(old);
  return new;
}

_Noreturn void abort(void) { __builtin_trap(); }

// With bulk memory the compiler makes one instruction of each of these three.
void *memcpy(void *restrict to, const void *restrict from, size_t size) { return __builtin_memcpy(to, from, size); }
void *memmove(void *to, const void *from, size_t size) { return __builtin_memmove(to, from, size); }
void *memset(void *to, int byte, size_t size) { return __builtin_memset(to, byte, size); }

int memcmp(const void *a, const void *b, size_t size) {
  const unsigned char *x = a, *y = b;
  for (size_t i = 0; i < size; i++) {
    if (x[i] != y[i]) return x[i] - y[i];
  }
  return 0;
}

void *memchr(const void *in, int byte, size_t size) {
  const unsigned char *x = in;
  for (size_t i = 0; i < size; i++) {
    if (x[i] == (unsigned char)byte) return (void *)(x + i);
  }
  return NULL;
}

size_t strlen(const char *text) {
  size_t length = 0;
  while (text[length]) length++;
  return length;
}

int strcmp(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return (unsigned char)*a - (unsigned char)*b;
}

// The bindings of each world refer to an object that describes it; `tokenloom plugin build` writes that description.
void __component_type_object_force_link_output_plugin(void) {}
void __component_type_object_force_link_template_plugin(void) {}
void __component_type_object_force_link_scheduler_plugin(void) {}
