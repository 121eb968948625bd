// SPDX-License-Identifier: Apache-2.0
// descriptors_private.cc - a connection by numbers that nobody else uses, amid all those that are
// taken away: its bytes are known by their position, and nothing else may read or write them.
//
// What a closed connection leaves behind (an endpoint, a ring, a number's meaning) is what such a
// connection gets. A call that still goes by it takes or adds bytes here.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "descriptors_stress.h"

namespace stress {
namespace {

// On the stack: in a child of a fork the sanitizer's allocator may be locked for good, by a thread
// that only the parent has.
constexpr size_t kMostBytes = 10'000;

struct End {
  int fd;
  uint64_t in, out;  // what its directions are called
  size_t got = 0, sent = 0;
};

char ByteAt(uint64_t direction, size_t offset) {
  return static_cast<char>(Mix(direction + offset / 8) >> offset % 8 * 8);
}

void SendAll(Hand& h, End& end, size_t bytes) {
  char text[kMostBytes];
  for (size_t i = 0; i < bytes; i++) text[i] = ByteAt(end.out, end.sent + i);
  At(h, "send, private", end.fd);
  const long until = NowMs() + kPatienceS * 1000;
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = send(end.fd, text + done, bytes - done, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == 512)) continue;
    if (n < 0 && errno == EAGAIN && NowMs() < until) continue;
    if (n <= 0) Bad("send by the private %d: %zd, errno %d", end.fd, n, errno);
    done += static_cast<size_t>(n);
  }
  end.sent += bytes;
}

void AwaitReadable(Hand& h, const End& end, size_t wanted) {
  At(h, "poll, private", end.fd);
  pollfd one{end.fd, POLLIN, 0};
  const long until = NowMs() + kPatienceS * 1000;
  while (poll(&one, 1, 1000) != 1) {
    if (NowMs() > until)
      Bad("the private %d: connection %llx, offset %zu: nothing comes, of %zu bytes", end.fd,
          static_cast<unsigned long long>(end.in), end.got, wanted);
  }
}

void RecvAll(Hand& h, End& end, size_t bytes) {
  char text[kMostBytes];
  for (const size_t all = end.got + bytes; end.got < all;) {
    const bool waits = h.OneIn(2);
    if (!waits) AwaitReadable(h, end, all - end.got);
    At(h, "recv, private", end.fd);
    const ssize_t n = recv(end.fd, text, all - end.got, waits ? 0 : MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == 512)) continue;
    if (n <= 0)
      Bad("recv by the private %d: connection %llx, offset %zu: %s (errno %d)", end.fd,
          static_cast<unsigned long long>(end.in), end.got, n == 0 ? "an early end" : "an error",
          errno);
    for (ssize_t i = 0; i < n; i++) {
      const size_t offset = end.got + static_cast<size_t>(i);
      const char got = text[static_cast<size_t>(i)], expected = ByteAt(end.in, offset);
      if (got != expected)
        Bad("recv by the private %d: connection %llx, offset %zu: expected %02x, got %02x", end.fd,
            static_cast<unsigned long long>(end.in), offset, static_cast<unsigned char>(expected),
            static_cast<unsigned char>(got));
    }
    end.got += static_cast<size_t>(n);
  }
}

void ExpectEnd(Hand& h, End& from, End& to) {
  if (shutdown(from.fd, SHUT_WR) != 0) Bad("shutdown of the private %d: errno %d", from.fd, errno);
  AwaitReadable(h, to, 0);
  char byte;
  const ssize_t n = recv(to.fd, &byte, 1, MSG_DONTWAIT);
  if (n != 0)
    Bad("the private %d: connection %llx, offset %zu: no end, but %zd (errno %d)", to.fd,
        static_cast<unsigned long long>(to.in), to.got, n, errno);
}

}  // namespace

void ExchangePrivately(Hand& h) {
  int fds[2];
  const uint64_t name = h.Below(1ull << 62);
  At(h, "a private pair", -1);
  MakePair(fds);
  End a{fds[0], name, ~name}, b{fds[1], ~name, name};
  for (uint64_t rounds = 1 + h.Below(6); rounds != 0; rounds--) {
    End& from = h.OneIn(2) ? a : b;
    // What a connection holds, without a reader, at the least.
    const size_t bytes = 1 + h.Below(h.OneIn(3) ? kMostBytes : 300);
    SendAll(h, from, bytes);
    RecvAll(h, &from == &a ? b : a, bytes);
  }
  ExpectEnd(h, a, b);
  ExpectEnd(h, b, a);
  close(a.fd);
  close(b.fd);
  shared->exchanges++;
}

}  // namespace stress
