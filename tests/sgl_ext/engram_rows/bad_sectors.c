/* Preloaded: once the file named by BAD_SECTORS_WHEN exists, reads of packed tables fail as on a worn disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef ssize_t (*pread_type)(int, void *, size_t, off_t);

static int is_bad(int fd) {
  char link[64], path[4096];
  const char *when = getenv("BAD_SECTORS_WHEN");
  if (when == NULL || access(when, F_OK) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 7) return 0;
  path[length] = 0;
  return strcmp(path + length - 7, ".engram") == 0;
}

static ssize_t read_or_fail(const char *name, int fd, void *buffer, size_t bytes, off_t offset) {
  if (is_bad(fd)) {
    errno = ENODATA; /* what the block layer makes of a medium error */
    return -1;
  }
  return ((pread_type)dlsym(RTLD_NEXT, name))(fd, buffer, bytes, offset);
}

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
  return read_or_fail("pread", fd, buffer, bytes, offset);
}

ssize_t pread64(int fd, void *buffer, size_t bytes, off_t offset) {
  return read_or_fail("pread64", fd, buffer, bytes, offset);
}
