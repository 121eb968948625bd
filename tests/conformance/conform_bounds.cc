// conform_bounds.cc - commands on how much a call or a buffer takes: sizes, counts and lengths.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "conform.h"

namespace conform {
namespace {

// `fits NAME SIZE SNDBUF RCVBUF`: writes so many bytes at a time until it would block, and goes on
// doing so as `fill` does. Whether as much fits as sockets with these options hold, which are
// doubled (0: not set; a negative SNDBUF is what it comes to itself); buffers are rounded, so
// within a half and twice that.
std::string Fits(const Args& a) {
  constexpr int kQuietRounds = 6;
  const std::string block(static_cast<size_t>(Number(a[1])), 'f');
  long total = 0;
  for (int quiet = 0; quiet < kQuietRounds; ++quiet) {
    if (quiet > 0) usleep(20000);
    ssize_t n;
    while ((n = send(Fd(a[0]), block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) {
      total += n;
      quiet = 0;
    }
  }
  constexpr long kSndbufMin = 4608, kRcvbufMin = 2304, kRcvbuf = 131072;
  const long snd = Number(a[2]), rcv = Number(a[3]);
  const long all = (snd < 0 ? -snd : std::max(snd * 2, kSndbufMin)) +
                   (rcv == 0 ? kRcvbuf : std::max(rcv * 2, kRcvbufMin));
  const bool within = total >= all / 2 && total <= all * 2;
  return (within ? "so many" : "not so many: " + std::to_string(total)) + ", then " + Errno();
}

// `sendmuch NAME SIZE FROM TO [FLAG ...]`: one call.
std::string SendMuch(const Args& a) {
  const std::string block(static_cast<size_t>(Number(a[1])), 'f');
  const ssize_t n = send(Fd(a[0]), block.data(), block.size(), MessageFlags(a, 4) | MSG_NOSIGNAL);
  if (n < 0) return Errno();
  const bool within = n >= Number(a[2]) && n <= Number(a[3]);
  return within ? "so many" : "not so many: " + std::to_string(n);
}

// `sendmany NAME COUNT`, `recvmany NAME COUNT`: one call, messages of one byte.
std::string Many(const Args& a, bool sends) {
  std::string bytes(static_cast<size_t>(Number(a[1])), 'm');
  std::vector<iovec> pieces(bytes.size());
  std::vector<mmsghdr> messages(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    pieces[i] = {&bytes[i], 1};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const auto count = static_cast<unsigned>(bytes.size());
  return Outcome(sends ? sendmmsg(Fd(a[0]), messages.data(), count, MSG_NOSIGNAL)
                       : recvmmsg(Fd(a[0]), messages.data(), count, MSG_DONTWAIT, nullptr));
}
std::string SendMany(const Args& a) { return Many(a, true); }
std::string RecvMany(const Args& a) { return Many(a, false); }

// `odd WHAT NAME`: lengths that are no lengths, or that say of nothing how long it is.
std::string Odd(const Args& a) {
  const int fd = Fd(a[1]);
  const std::string& what = a[0];
  char byte = 'o';
  sockaddr_storage name{};
  auto* sa = reinterpret_cast<sockaddr*>(&name);
  auto* nowhere = static_cast<sockaddr*>(Nowhere());
  constexpr auto kNegative = static_cast<socklen_t>(-1);
  constexpr int kSend = MSG_NOSIGNAL, kRecv = MSG_DONTWAIT;
  socklen_t len = what == "recvfrom-negative" ? kNegative : sizeof name;
  iovec piece{&byte, 1};
  msghdr m{};
  m.msg_iov = &piece;
  m.msg_iovlen = 1;
  if (what == "sendto-negative") return Outcome(sendto(fd, &byte, 1, kSend, sa, kNegative));
  if (what == "sendto-long") return Outcome(sendto(fd, &byte, 1, kSend, sa, 129));
  if (what == "sendto-short") return Outcome(sendto(fd, &byte, 1, kSend, sa, 1));
  if (what == "sendto-none") return Outcome(sendto(fd, &byte, 1, kSend, nowhere, 0));
  if (what == "sendto-nowhere") return Outcome(sendto(fd, &byte, 1, kSend, nowhere, 16));
  if (what == "sendto-null") return Outcome(sendto(fd, &byte, 1, kSend, nullptr, kNegative));
  if (what == "recvfrom-negative") return Outcome(recvfrom(fd, &byte, 1, kRecv, sa, &len));
  if (what == "recvfrom-length") {
    auto* no_length = static_cast<socklen_t*>(Nowhere());
    return Outcome(recvfrom(fd, &byte, 1, kRecv, sa, no_length));
  }
  if (what == "recvfrom-null") return Outcome(recvfrom(fd, &byte, 1, kRecv, nullptr, &len));
  if (what == "name-negative") m.msg_name = sa, m.msg_namelen = kNegative;
  if (what == "name-long") m.msg_name = sa, m.msg_namelen = 4096;
  if (what == "name-null") m.msg_namelen = kNegative;
  if (what == "name-nowhere") m.msg_name = nowhere, m.msg_namelen = 16;
  if (what == "control-huge") m.msg_control = sa, m.msg_controllen = size_t{1} << 32;
  if (what == "control-null") m.msg_controllen = 64;
  if (what == "pieces-many") m.msg_iovlen = 1025;
  if (what == "piece-negative") piece.iov_len = static_cast<size_t>(-1);
  const ssize_t sent = sendmsg(fd, &m, kSend);
  std::string out = "send " + Outcome(sent);
  piece.iov_len = what == "piece-negative" ? static_cast<size_t>(-1) : 1;
  const ssize_t got = recvmsg(fd, &m, kRecv);
  return out + " recv " + Outcome(got) +
         (got >= 0 ? " namelen " + std::to_string(static_cast<int>(m.msg_namelen)) : "");
}

}  // namespace

const Entry kBoundsCommands[] = {{"fits", 4, Fits},         {"sendmuch", 4, SendMuch},
                                 {"sendmany", 2, SendMany}, {"recvmany", 2, RecvMany},
                                 {"odd", 2, Odd},           {nullptr, 0, nullptr}};

}  // namespace conform
