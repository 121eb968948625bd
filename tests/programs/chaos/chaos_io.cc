// SPDX-License-Identifier: Apache-2.0
// chaos_io.cc - the calls that move bytes, chosen at random; each byte is checked.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "chaos.h"

namespace chaos {
namespace {

constexpr size_t kMost = 70000;
constexpr size_t kPipe = 32768;  // what an empty pipe takes at once
constexpr unsigned kMessages = 3;
thread_local uint8_t buffer[kMost];
thread_local unsigned call;  // which of RecvSome's calls was the last

void Fill(uint64_t seed, uint64_t from, uint8_t* out, size_t n) {
  for (size_t i = 0; i < n; i++, from++)
    out[i] = static_cast<uint8_t>(Mix(seed + from / 8) >> 8 * (from % 8));
}

// Whose they are can be found out: each byte says from which seed and position it comes.
void Show(const uint8_t* bytes, size_t n) {
  char text[200];
  int at = snprintf(text, sizeof text, "by call %u, %zu bytes:", call, n);
  for (size_t i = 0; i < n && i < 40; i++)
    at += snprintf(text + at, sizeof text - static_cast<size_t>(at), " %02x", bytes[i]);
  text[at++] = '\n';
  if (write(1, text, static_cast<size_t>(at)) < 0) abort();
}

void Check(const Stream& s, const uint8_t* bytes, size_t n) {
  if (s.got + n > s.to_get) {
    Show(bytes, n);
    Bad(&s, "more bytes than were sent", static_cast<long>(n));
  }
  for (size_t i = 0; i < n; i++) {
    uint8_t want;
    Fill(s.in_seed, s.got + i, &want, 1);
    if (bytes[i] == want) continue;
    Show(bytes + i, n - i);
    Bad(&s, "another byte, this far into a read", static_cast<long>(i));
  }
}

size_t Size(Stream& s) {
  static constexpr size_t kSizes[] = {1, 7, 64, 300, 1000, 4096, 16384, kMost};
  return 1 + Below(s.rng, kSizes[Below(s.rng, 8)]);
}

// Plain calls know no MSG_DONTWAIT. All holders of the connection share the flag; a holder that
// meets it by accident gets EAGAIN once too often.
class Nonblocking {
 public:
  Nonblocking(int fd, bool on) : fd_(on ? fd : -1) {
    if (on) fcntl(fd_, F_SETFL, O_RDWR | O_NONBLOCK);
  }
  ~Nonblocking() {
    const int error = errno;
    if (fd_ >= 0) fcntl(fd_, F_SETFL, O_RDWR);
    errno = error;
  }
  Nonblocking(const Nonblocking&) = delete;
  Nonblocking& operator=(const Nonblocking&) = delete;

 private:
  int fd_;
};

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    const int error = errno;
    close(fd_);
    errno = error;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

void Pipe(const Stream& s, int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) != 0) Bad(&s, "pipe", errno);
}

// `n` bytes of the buffer as up to kMessages messages, none of them empty: one that is would be
// received without a wait.
struct Messages {
  Messages(Stream& s, size_t n)
      : count(1 + static_cast<unsigned>(Below(s.rng, std::min<size_t>(n, kMessages)))) {
    for (unsigned i = 0; i < count; i++) {
      const size_t from = n * i / count, to = n * (i + 1) / count, middle = (from + to) / 2;
      pieces[i][0] = {buffer + from, middle - from};
      pieces[i][1] = {buffer + middle, to - middle};
      all[i].msg_hdr.msg_iov = pieces[i];
      all[i].msg_hdr.msg_iovlen = 2;
    }
  }
  iovec pieces[kMessages][2];
  mmsghdr all[kMessages] = {};
  unsigned count;
};

ssize_t SendMessages(Stream& s, size_t n, int flags) {
  Messages m(s, n);
  const int done = sendmmsg(s.fd, m.all, m.count, flags);
  if (done <= 0) return done;
  ssize_t sum = 0;
  for (int i = 0; i < done; i++) {
    sum += m.all[i].msg_len;
    const size_t whole = m.pieces[i][0].iov_len + m.pieces[i][1].iov_len;
    if (m.all[i].msg_len != whole && i + 1 < done) Bad(&s, "sent on behind a part", i);
  }
  return sum;
}

// Messages behind the end of the stream are empty.
ssize_t RecvMessages(Stream& s, size_t n, int flags) {
  Messages m(s, n);
  const int done =
      recvmmsg(s.fd, m.all, m.count, flags | (Below(s.rng, 2) != 0 ? MSG_WAITFORONE : 0), nullptr);
  if (done <= 0) return done;
  ssize_t sum = 0;
  for (int i = 0; i < done; i++) {  // close ranks
    const size_t len = m.all[i].msg_len, first = std::min(len, m.pieces[i][0].iov_len);
    std::copy_n(static_cast<uint8_t*>(m.pieces[i][0].iov_base), first, buffer + sum);
    std::copy_n(static_cast<uint8_t*>(m.pieces[i][1].iov_base), len - first, buffer + sum + first);
    sum += static_cast<ssize_t>(len);
  }
  return sum;
}

ssize_t SendFile(const Stream& s, size_t n) {
  Fd file(memfd_create("chaos", MFD_CLOEXEC));
  if (write(file, buffer, n) != static_cast<ssize_t>(n)) Bad(&s, "memfd", errno);
  off_t from = 0;
  const ssize_t r = sendfile(s.fd, file, &from, n);
  if (r >= 0 && r != from) Bad(&s, "sendfile moved the offset elsewhere", from);
  return r;
}

ssize_t SpliceOut(const Stream& s, size_t n) {
  int ends[2];
  Pipe(s, ends);
  Fd in(ends[0]), out(ends[1]);
  const ssize_t put = write(out, buffer, std::min(n, kPipe));
  if (put <= 0) Bad(&s, "a write to an empty pipe", errno);
  return splice(in, nullptr, s.fd, nullptr, static_cast<size_t>(put), 0);
}

ssize_t SpliceIn(const Stream& s, size_t n) {
  int ends[2];
  Pipe(s, ends);
  Fd in(ends[0]), out(ends[1]);
  const ssize_t r = splice(s.fd, nullptr, out, nullptr, std::min(n, kPipe), 0);
  // The kernel says 0 where data came that moment, too.
  if (r == 0) return recv(s.fd, buffer, 1, MSG_DONTWAIT);
  for (ssize_t done = 0; done < r;) {
    const ssize_t got = read(in, buffer + done, static_cast<size_t>(r - done));
    if (got <= 0 && !Interrupted()) Bad(&s, "a splice put less into a pipe than it said", got);
    if (got > 0) done += got;
  }
  return r;
}

}  // namespace

long SendSome(Stream& s, bool may_block) {
  size_t n = Size(s);
  if (n > s.to_send - s.sent) n = s.to_send - s.sent;
  Fill(s.out_seed, s.sent, buffer, n);
  const int flags = may_block ? 0 : MSG_DONTWAIT;
  iovec parts[2] = {{buffer, n / 3}, {buffer + n / 3, n - n / 3}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const uint64_t how = Below(s.rng, 8);
  ssize_t r;
  if (how < 4) {
    r = how == 0   ? send(s.fd, buffer, n, flags)
        : how == 1 ? sendto(s.fd, buffer, n, flags | MSG_NOSIGNAL, nullptr, 0)
        : how == 2 ? sendmsg(s.fd, &message, flags)
                   : SendMessages(s, n, flags);
  } else {
    Nonblocking now(s.fd, !may_block);
    r = how == 4   ? write(s.fd, buffer, n)
        : how == 5 ? writev(s.fd, parts, 2)
        : how == 6 ? SendFile(s, n)
                   : SpliceOut(s, n);
  }
  if (r < 0) return Interrupted() ? -EINTR : -errno;
  s.sent += static_cast<uint64_t>(r);
  return r;
}

long RecvSome(Stream& s, bool may_block) {
  size_t n = Size(s);
  const int flags = may_block ? 0 : MSG_DONTWAIT;
  iovec parts[2] = {{buffer, n / 2}, {buffer + n / 2, n - n / 2}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const uint64_t how = Below(s.rng, 11);
  call = static_cast<unsigned>(how);
  bool take = true, look = true;
  ssize_t r;
  if (how < 8) {
    take = how != 2 && how != 3;
    look = how != 4;
    // A look that waits for more than the kernel has is stuck where its window is closed, which
    // only taking opens again.
    if (how == 3) n = std::min<size_t>(n, 2);
    r = how == 0   ? recv(s.fd, buffer, n, flags)
        : how == 1 ? recvmsg(s.fd, &message, flags)
        : how == 2 ? recv(s.fd, buffer, n, flags | MSG_PEEK)
        : how == 3 ? recv(s.fd, buffer, n, flags | MSG_PEEK | MSG_WAITALL)
        : how == 4 ? recv(s.fd, buffer, n, flags | MSG_TRUNC)  // thrown away unseen
        : how == 5 ? recvfrom(s.fd, buffer, n, flags, nullptr, nullptr)
        : how == 6 ? recv(s.fd, buffer, n, flags | MSG_WAITALL)
                   : RecvMessages(s, n, flags);
  } else {
    Nonblocking now(s.fd, !may_block);
    r = how == 8 ? read(s.fd, buffer, n) : how == 9 ? readv(s.fd, parts, 2) : SpliceIn(s, n);
  }
  if (r < 0) return Interrupted() ? -EINTR : -errno;
  if (look) Check(s, buffer, static_cast<size_t>(r));
  if (take) s.got += static_cast<uint64_t>(r);
  return r;
}

}  // namespace chaos
