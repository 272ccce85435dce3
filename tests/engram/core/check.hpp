// Checks for test programs: exit 0 passed, 1 failed, 77 skipped (the reason on stderr).
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (condition) break;                                                              \
    std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
    std::exit(1);                                                                      \
  } while (false)

[[noreturn]] inline void skip(const char* reason) {
  std::fprintf(stderr, "skipped: %s\n", reason);
  std::exit(77);
}
