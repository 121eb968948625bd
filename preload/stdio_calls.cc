// SPDX-License-Identifier: Apache-2.0
// stdio_calls.cc - FILEs on accelerated sockets.
//
// A FILE of libc reads and writes past our hooks. For an accelerated socket we build it with
// fopencookie, whose functions are our hooks, and answer fileno() for it.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "endpoint/call.h"
#include "family/family.h"
#include "family/local_lock.h"
#include "real.h"
#include "sock/own_family.h"
#include "sock/watch.h"

using namespace postern;

extern "C" ssize_t read(int fd, void* buf, size_t n);
extern "C" ssize_t write(int fd, const void* buf, size_t n);
extern "C" int close(int fd);
extern "C" int __vdprintf_chk(int fd, int flag, const char* format, va_list ap);

namespace {

struct Stream {
  FILE* file;
  int fd;
  Stream* next;
};
PSTN_LOCK_WHOLE(streams_lock);
Stream* streams;  // of this process, most recent first

bool NeedsCookie(int fd) {
  const Call call(g_family, fd);
  return SockIsServed(call);
}

// Everything or an error, as libc writes out its buffer.
size_t WriteAll(int fd, const char* data, size_t n) {
  size_t done = 0;
  while (done < n) {
    ssize_t r = write(fd, data + done, n - done);
    if (r < 0) break;
    done += static_cast<size_t>(r);
  }
  return done;
}

ssize_t CookieRead(void* cookie, char* buf, size_t n) {
  return read(static_cast<Stream*>(cookie)->fd, buf, n);
}
ssize_t CookieWrite(void* cookie, const char* buf, size_t n) {
  return static_cast<ssize_t>(WriteAll(static_cast<Stream*>(cookie)->fd, buf, n));
}
int CookieSeek(void*, off64_t*, int) { return Ret<int>(-ESPIPE); }
int CookieClose(void* cookie) {
  Stream* gone = static_cast<Stream*>(cookie);
  {
    Guard g(streams_lock);
    for (Stream** at = &streams; *at != nullptr; at = &(*at)->next) {
      if (*at != gone) continue;
      *at = gone->next;
      break;
    }
  }
  int fd = gone->fd;
  free(gone);  // tidy-allow: stdio allocates as well
  return close(fd);
}

FILE* OpenStream(int fd, const char* mode) {
  Stream* s = static_cast<Stream*>(malloc(sizeof *s));  // tidy-allow: stdio allocates as well
  if (s == nullptr) return nullptr;
  FILE* f = fopencookie(s, mode, {CookieRead, CookieWrite, CookieSeek, CookieClose});
  if (f == nullptr) {
    free(s);  // tidy-allow: stdio allocates as well
    return nullptr;
  }
  Guard g(streams_lock);
  *s = {f, fd, streams};
  streams = s;
  return f;
}

int FdOfStream(FILE* f) {
  Guard g(streams_lock);
  for (Stream* s = streams; s != nullptr; s = s->next) {
    if (s->file == f) return s->fd;
  }
  return -1;
}

int Print(int fd, const char* format, va_list ap) {
  char few[1024];
  va_list again;
  va_copy(again, ap);
  int n = vsnprintf(few, sizeof few, format, ap);
  char* text = few;
  if (n >= static_cast<int>(sizeof few)) {
    text = static_cast<char*>(
        malloc(static_cast<size_t>(n) + 1));  // tidy-allow: stdio allocates as well
    if (text != nullptr) n = vsnprintf(text, static_cast<size_t>(n) + 1, format, again);
  }
  va_end(again);
  if (text == nullptr) return Ret<int>(-ENOMEM);
  if (n > 0 && WriteAll(fd, text, static_cast<size_t>(n)) != static_cast<size_t>(n)) n = -1;
  if (text != few) free(text);  // tidy-allow: stdio allocates as well
  return n;
}

}  // namespace

namespace postern {

// After an exec that left us 0, 1 or 2 as accelerated sockets: libc's own three FILEs would go to
// the kernel's half of them.
void StdioAttach() {
  if (!g_family.enabled) return;
  FILE* f;
  if (NeedsCookie(0) && (f = OpenStream(0, "r")) != nullptr) stdin = f;
  if (NeedsCookie(1) && (f = OpenStream(1, "w")) != nullptr) stdout = f;
  if (NeedsCookie(2) && (f = OpenStream(2, "w")) != nullptr) {
    (void)setvbuf(f, nullptr, _IONBF, 0);
    stderr = f;
  }
}

}  // namespace postern

PSTN_EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
  if (NeedsCookie(fd)) return OpenStream(fd, mode);
  if (Foreign(fd) == kPass) return PSTN_REAL(fdopen)(fd, mode);
  errno = EBADF;
  return nullptr;
}
PSTN_EXPORT int fileno_unlocked(FILE* file) noexcept {
  int before = errno;
  int fd = PSTN_REAL(fileno_unlocked)(file);
  if (fd >= 0) return fd;
  fd = FdOfStream(file);
  if (fd >= 0) errno = before;
  return fd;
}
PSTN_EXPORT int fileno(FILE* f) noexcept { return fileno_unlocked(f); }

PSTN_EXPORT int vdprintf(int fd, const char* format, va_list ap) {
  if (NeedsCookie(fd)) return Print(fd, format, ap);
  return Foreign(fd) == kPass ? PSTN_REAL(vdprintf)(fd, format, ap) : Ret<int>(-EBADF);
}
PSTN_EXPORT int dprintf(int fd, const char* format, ...) {
  va_list ap;
  va_start(ap, format);
  int r = vdprintf(fd, format, ap);
  va_end(ap);
  return r;
}
PSTN_EXPORT int __vdprintf_chk(int fd, int flag, const char* format, va_list ap) {
  if (NeedsCookie(fd)) return Print(fd, format, ap);
  return Foreign(fd) == kPass ? PSTN_REAL(__vdprintf_chk)(fd, flag, format, ap) : Ret<int>(-EBADF);
}
PSTN_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list ap;
  va_start(ap, format);
  int r = __vdprintf_chk(fd, flag, format, ap);
  va_end(ap);
  return r;
}
