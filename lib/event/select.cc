// SPDX-License-Identifier: Apache-2.0
// select.cc - select() as a poll().
#include <sys/select.h>

#include <cerrno>

#include "base/sys.h"
#include "event/poll.h"
#include "event/poll_set.h"
#include "family/family.h"
#include "family/turn.h"

namespace postern {

long SockSelect(Family& fam, int n, fd_set* r, fd_set* w, fd_set* x, Deadline until,
                const sigset_t* mask) {
  if (n < 0) return -EINVAL;
  constexpr short kIn =
      POLLRDNORM | POLLRDBAND | POLLIN | POLLHUP | POLLERR | POLLNVAL;  // as the kernel's select
  constexpr short kOut = POLLWRBAND | POLLWRNORM | POLLOUT | POLLERR | POLLNVAL;
  constexpr short kPri = POLLPRI | POLLNVAL;
  auto has = [](const fd_set* s, int fd) {
    return s != nullptr && (reinterpret_cast<const uint64_t*>(s)[fd / 64] >> (fd % 64) & 1u) != 0;
  };
  auto put = [](fd_set* s, int fd, bool on) {
    if (s == nullptr) return;
    uint64_t bit = 1ull << (fd % 64);
    uint64_t& word = reinterpret_cast<uint64_t*>(s)[fd / 64];
    word = on ? word | bit : word & ~bit;
  };
  size_t count = 0;
  for (int fd = 0; fd < n; fd++) count += has(r, fd) || has(w, fd) || has(x, fd) ? 1u : 0u;
  size_t bytes = (count + 1) * sizeof(pollfd);
  pollfd few[kInline];
  pollfd* fds = few;
  if (count > kInline) {
    long m = sys::Call(SYS_mmap, 0L, bytes, static_cast<long>(PROT_READ | PROT_WRITE),
                       static_cast<long>(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
    if (m < 0 && m > -4096) return -ENOMEM;
    fds = reinterpret_cast<pollfd*>(m);
  }
  size_t at = 0;
  for (int fd = 0; fd < n; fd++) {
    if (!has(r, fd) && !has(w, fd) && !has(x, fd)) continue;
    int events =
        (has(r, fd) ? POLLIN : 0) | (has(w, fd) ? POLLOUT : 0) | (has(x, fd) ? POLLPRI : 0);
    fds[at++] = {fd, static_cast<short>(events), 0};
  }
  bool slept = false;
  long ready = WireEvents(fam, SockPoll(fam, fds, count, until, mask, nullptr, &slept));
  long result = ready;
  // A number that is closed while select() sleeps is ready for all.
  for (size_t i = 0; i < count && ready >= 0 && !slept; i++) {
    if ((fds[i].revents & POLLNVAL) != 0) result = -EBADF;
  }
  if (result >= 0) {
    result = 0;
    for (size_t i = 0; i < count; i++) {
      int fd = fds[i].fd;
      bool in = has(r, fd) && (fds[i].revents & kIn) != 0;
      bool out = has(w, fd) && (fds[i].revents & kOut) != 0;
      bool pri = has(x, fd) && (fds[i].revents & kPri) != 0;
      put(r, fd, in);
      put(w, fd, out);
      put(x, fd, pri);
      result += (in ? 1 : 0) + (out ? 1 : 0) + (pri ? 1 : 0);
    }
  }
  if (count > kInline) sys::Unmap(fds, bytes);
  return result;
}

}  // namespace postern
