// SPDX-License-Identifier: Apache-2.0
// stdio_calls.cc - FILEs on accelerated sockets.
//
// A FILE of libc reads and writes past our hooks. For an accelerated socket we build it with
// fopencookie, whose functions are our hooks, and answer fileno() for it.
//
// stdin, stdout and stderr are there before any socket is. Where an image begins with sockets as 0,
// 1 or 2 they are replaced before the program looks at them. If it puts one there later (dup2()),
// it may have kept them elsewhere, and so may libc and libstdc++: that socket becomes the kernel's.
// But a child that has just been forked does so as a rule for the image that it is about to run,
// which a connection of the kernel's would slow down; there, too, the three variables change, and
// what waits in their buffers moves.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio_ext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/sys.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/local_lock.h"
#include "peer/export.h"
#include "real.h"
#include "sock/own_family.h"
#include "sock/watch.h"

using namespace postern;

extern "C" ssize_t read(int fd, void* buf, size_t n);
extern "C" ssize_t write(int fd, const void* buf, size_t n);
extern "C" int close(int fd);
extern "C" int dup2(int from, int to) noexcept;
extern "C" int __vdprintf_chk(int fd, int flag, const char* format, va_list ap);

namespace {

struct Stream {
  FILE* file;
  int fd;
  Stream* next;
  // Read before anything that is new: what libc's FILE had read already.
  char* early;
  size_t early_bytes;
};
PSTN_LOCK_WHOLE(streams_lock);
Stream* streams PSTN_GUARDED_BY(streams_lock);  // of this process, most recent first

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
  Stream& s = *static_cast<Stream*>(cookie);
  if (s.early_bytes == 0) return read(s.fd, buf, n);
  if (n > s.early_bytes) n = s.early_bytes;
  memcpy(buf, s.early, n);
  s.early += n;
  s.early_bytes -= n;
  return static_cast<ssize_t>(n);
}
ssize_t CookieWrite(void* cookie, const char* buf, size_t n) {
  return static_cast<ssize_t>(WriteAll(static_cast<Stream*>(cookie)->fd, buf, n));
}
int CookieSeek(void*, off64_t*, int) { return Ret<int>(-ESPIPE); }
// stdin, stdout and stderr: libc's own FILE, and ours, which is made once and stays.
struct Standard {
  FILE* libcs;
  FILE* ours;
};
constexpr int kStandard = 3;
Standard standard[kStandard];

int CookieClose(void* cookie) {
  Stream* gone = static_cast<Stream*>(cookie);
  for (Standard& s : standard) {
    if (s.ours == gone->file) s.ours = nullptr;
  }
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
  *s = {f, fd, streams, nullptr, 0};
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

pid_t image_pid;  // of the process that has begun with this image
bool has_cout;    // libstdc++ is there

FILE*& Variable(int fd) { return fd == 0 ? stdin : fd == 1 ? stdout : stderr; }

// What libc's FILE has read and the program has not, to be read from ours.
void MoveInput(FILE* from, Stream& to) {
  const size_t bytes = static_cast<size_t>(from->_IO_read_end - from->_IO_read_ptr);
  if (bytes == 0) return;
  char* const unread = static_cast<char*>(malloc(bytes));  // tidy-allow: stdio allocates as well
  if (unread == nullptr) return;
  memcpy(unread, from->_IO_read_ptr, bytes);
  to.early = unread;
  to.early_bytes = bytes;
  __fpurge(from);
}

// What waits to be written, from one FILE to another, which has it in the same kind of buffer.
void MoveOutput(FILE* from, FILE* to) {
  const size_t bytes = __fpending(from);
  if (bytes != 0) (void)fwrite(from->_IO_write_base, 1, bytes, to);  // tidy-allow: a FILE's
  __fpurge(from);
}

void BufferAs(const FILE* as, int fd, FILE* to) {
  constexpr int kLine = 0x200,
                kNone = 0x2;  // _IO_LINE_BUF and _IO_UNBUFFERED, as setvbuf sets them
  const int mode = (as->_flags & kNone) != 0 ? _IONBF : (as->_flags & kLine) != 0 ? _IOLBF : _IOFBF;
  if (fd != 0) (void)setvbuf(to, nullptr, mode, BUFSIZ);
}

Stream* StreamOf(const FILE* f) {
  Guard g(streams_lock);
  for (Stream* s = streams; s != nullptr; s = s->next) {
    if (s->file == f) return s;
  }
  return nullptr;
}

void Replace(int fd) {
  Standard& s = standard[fd];
  FILE*& now = Variable(fd);
  if (now == nullptr || now == s.ours) return;
  FILE* const ours = s.ours != nullptr ? s.ours : OpenStream(fd, fd == 0 ? "r" : "w");
  if (ours == nullptr) return;
  s = {now, ours};
  Stream* const stream = StreamOf(ours);
  flockfile(s.libcs);
  BufferAs(s.libcs, fd, ours);
  if (fd == 0 && stream != nullptr && stream->early_bytes == 0)
    MoveInput(s.libcs, *stream);
  else if (fd != 0)
    MoveOutput(s.libcs, ours);
  funlockfile(s.libcs);
  now = ours;
}

void PutBack(int fd) {
  Standard& s = standard[fd];
  FILE*& now = Variable(fd);
  if (s.ours == nullptr || now != s.ours) return;
  now = s.libcs;
  if (fd != 0) return MoveOutput(s.ours, s.libcs);
  Stream* const stream = StreamOf(s.ours);
  for (; stream != nullptr && stream->early_bytes != 0; stream->early_bytes--)
    (void)ungetc(static_cast<unsigned char>(stream->early[stream->early_bytes - 1]), s.libcs);
  for (; s.ours->_IO_read_end > s.ours->_IO_read_ptr; s.ours->_IO_read_end--)
    (void)ungetc(static_cast<unsigned char>(s.ours->_IO_read_end[-1]), s.libcs);
}

}  // namespace

namespace postern {

void StdioAttach() {
  image_pid = sys::Pid();
  if (!g_family.enabled) return;
  has_cout = dlsym(RTLD_DEFAULT, "_ZSt4cout") != nullptr;
  // From GCC 13 on the library itself begins its streams, with libc's FILEs, and has done so.
  const bool is_late = has_cout && dlsym(RTLD_DEFAULT, "_ZSt21ios_base_library_initv") != nullptr;
  (void)dlerror();  // of ours the program hears nothing
  for (int fd = 0; fd < kStandard; fd++) {
    if (!NeedsCookie(fd)) continue;
    if (is_late)
      (void)ExportFor(g_family, fd, kReasonStdio);
    else
      Replace(fd);
  }
}

int NoteStandard(int fd, bool copied) {
  if (static_cast<unsigned>(fd) >= kStandard || !g_family.attached) [[likely]]
    return fd;
  const int e = errno;
  if (!NeedsCookie(fd)) {
    PutBack(fd);
  } else if (copied && (has_cout || sys::Pid() == image_pid)) {
    (void)ExportFor(g_family, fd, kReasonStdio);
  } else {
    Replace(fd);
  }
  errno = e;
  return fd;
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

namespace {

// A FILE of fdopen() is made for a socket, and goes on with another file under the same number.
FILE* ReopenStream(Stream& s, const char* path, const char* mode) {
  constexpr int kNoReads = 4, kNoWrites = 8;  // of _flags
  FILE* const f = s.file;
  (void)fflush(f);
  FILE* const fresh = path != nullptr ? fopen(path, mode) : nullptr;  // tidy-allow: the program's
  if (fresh == nullptr || dup2(fileno(fresh), s.fd) < 0) {
    const int e = path != nullptr ? errno : ENXIO;  // as of a socket by its name in /proc
    if (fresh != nullptr) (void)fclose(fresh);
    (void)fclose(f);
    errno = e;
    return nullptr;
  }
  (void)fclose(fresh);
  const size_t flags = strcspn(mode, ",");  // what follows is a character set's name
  if (memchr(mode, 'e', flags) != nullptr) (void)fcntl(s.fd, F_SETFD, FD_CLOEXEC);
  __fpurge(f);
  clearerr(f);
  const bool both = strchr(mode, '+') != nullptr;
  f->_flags &= ~(kNoReads | kNoWrites);
  if (!both) f->_flags |= mode[0] == 'r' ? kNoWrites : kNoReads;
  return f;
}

// libc closes the number inside, and opens another file there.
template <typename Real>
FILE* Reopen(const char* path, const char* mode, FILE* f, Real real) {
  for (int fd = 0; fd < kStandard; fd++) {
    if (f == nullptr || f != standard[fd].ours) continue;
    PutBack(fd);
    f = standard[fd].libcs;
  }
  if (Stream* const stream = f != nullptr ? StreamOf(f) : nullptr; stream != nullptr)
    return ReopenStream(*stream, path, mode);
  const int fd = f != nullptr ? fileno(f) : -1;
  FILE* const done = real(path, mode, f);
  const int e = errno;
  if (fd >= 0 && !InVfork()) {
    TakeNumber(fd);
    (void)NoteStandard(fd, true);
  }
  errno = e;
  return done;
}

}  // namespace

PSTN_EXPORT FILE* freopen(const char* path, const char* mode, FILE* f) {
  return Reopen(path, mode, f, PSTN_REAL(freopen));
}
PSTN_EXPORT FILE* freopen64(const char* path, const char* mode, FILE* f) {
  return Reopen(path, mode, f, PSTN_REAL(freopen64));
}
