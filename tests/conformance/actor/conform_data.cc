// conform_data.cc - commands that move bytes, and how many a call or a buffer takes.
// SPDX-License-Identifier: Apache-2.0

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "conform.h"
#include "ring_calls.h"

namespace conform {
namespace {

std::string Received(ssize_t n, const std::string& buffer) {
  return n < 0 ? Errno()
               : std::to_string(n) + " " +
                     Data(buffer.substr(0, std::min(static_cast<size_t>(n), buffer.size())));
}

std::string Buffer(const std::string& size) {
  return std::string(static_cast<size_t>(Number(size)), '.');
}

std::string Send(const Args& a) {
  const std::string data = Expand(a[1]);
  return Outcome(by::Send(Fd(a[0]), data.data(), data.size(), MessageFlags(a, 2)));
}

// `sendto NAME DATA [HOST/]PORT [FLAG ...]`
std::string Sendto(const Args& a) {
  const std::string data = Expand(a[1]);
  const size_t slash = a[2].find('/');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(Number(a[2].substr(slash + 1))));  // npos + 1 is 0
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (slash != std::string::npos) inet_pton(AF_INET, a[2].substr(0, slash).c_str(), &to.sin_addr);
  return Outcome(sendto(Fd(a[0]), data.data(), data.size(), MessageFlags(a, 3),
                        reinterpret_cast<sockaddr*>(&to), sizeof to));
}

std::string Write(const Args& a) {
  const std::string data = Expand(a[1]);
  return Outcome(by::Write(Fd(a[0]), data.data(), data.size()));
}

std::string Writev(const Args& a) {
  std::vector<std::string> data;
  for (size_t i = 1; i < a.size(); ++i) data.push_back(Expand(a[i]));
  std::vector<iovec> pieces;
  for (auto& d : data) pieces.push_back({d.data(), d.size()});
  return Outcome(by::Writev(Fd(a[0]), pieces.data(), static_cast<int>(pieces.size())));
}

std::string Sendmmsg(const Args& a) {
  std::vector<std::string> data;
  for (size_t i = 1; i < a.size(); ++i) data.push_back(Expand(a[i]));
  std::vector<iovec> pieces(data.size());
  std::vector<mmsghdr> messages(data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    pieces[i] = {data[i].data(), data[i].size()};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int n =
      sendmmsg(Fd(a[0]), messages.data(), static_cast<unsigned>(messages.size()), MSG_NOSIGNAL);
  std::string out = Outcome(n);
  for (int i = 0; i < n; ++i) out += " " + std::to_string(messages[static_cast<size_t>(i)].msg_len);
  return out;
}

std::string Recv(const Args& a) {
  std::string buffer = Buffer(a[1]);
  return Received(by::Recv(Fd(a[0]), buffer.data(), buffer.size(), MessageFlags(a, 2)), buffer);
}

std::string Read(const Args& a) {
  std::string buffer = Buffer(a[1]);
  return Received(by::Read(Fd(a[0]), buffer.data(), buffer.size()), buffer);
}

std::string Readv(const Args& a) {
  std::vector<std::string> buffers;
  for (size_t i = 1; i < a.size(); ++i) buffers.push_back(Buffer(a[i]));
  std::vector<iovec> pieces;
  for (auto& b : buffers) pieces.push_back({b.data(), b.size()});
  const ssize_t n = by::Readv(Fd(a[0]), pieces.data(), static_cast<int>(pieces.size()));
  std::string all;
  for (const auto& b : buffers) all += b;
  return Received(n, all);
}

// The address is not filled in for a connected stream; its length says so.
std::string Recvfrom(const Args& a) {
  std::string buffer = Buffer(a[1]);
  sockaddr_storage from{};
  socklen_t len = sizeof from;
  const ssize_t n = recvfrom(Fd(a[0]), buffer.data(), buffer.size(), MessageFlags(a, 2),
                             reinterpret_cast<sockaddr*>(&from), &len);
  return Received(n, buffer) + (n < 0 ? "" : " addrlen " + std::to_string(len));
}

std::string Recvmsg(const Args& a) {
  std::string buffer = Buffer(a[1]);
  sockaddr_storage from{};
  char control[128];
  iovec piece{buffer.data(), buffer.size()};
  msghdr message{&from, sizeof from, &piece, 1, control, sizeof control, 0};
  const ssize_t n = by::Recvmsg(Fd(a[0]), &message, MessageFlags(a, 2));
  return Received(n, buffer) + (n < 0
                                    ? ""
                                    : " namelen " + std::to_string(message.msg_namelen) +
                                          " controllen " + std::to_string(message.msg_controllen) +
                                          " flags " + std::to_string(message.msg_flags));
}

std::string Recvmmsg(const Args& a) {
  std::vector<std::string> buffers;
  size_t last = a.size();
  const bool one = a.back() == "WAITFORONE", now = a.back() == "DONTWAIT";
  if (one || now) --last;
  for (size_t i = 1; i < last; ++i) buffers.push_back(Buffer(a[i]));
  std::vector<iovec> pieces(buffers.size());
  std::vector<mmsghdr> messages(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    pieces[i] = {buffers[i].data(), buffers[i].size()};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const int n = recvmmsg(Fd(a[0]), messages.data(), static_cast<unsigned>(messages.size()),
                         one   ? MSG_WAITFORONE
                         : now ? MSG_DONTWAIT
                               : 0,
                         nullptr);
  std::string out = Outcome(n);
  for (int i = 0; i < n; ++i)
    out += " " + Data(buffers[static_cast<size_t>(i)].substr(
                     0, messages[static_cast<size_t>(i)].msg_len));
  return out;
}

std::string Sendfile(const Args& a) {
  const std::string data = Expand(a[1]);
  const int file = memfd_create("conform", 0);
  off_t offset = a.size() > 2 ? Number(a[2]) : 0;
  if (write(file, data.data(), data.size()) < 0) return Errno();
  const ssize_t n = sendfile(Fd(a[0]), file, &offset, data.size());
  const std::string result = Outcome(n);
  close(file);
  return result + " offset " + std::to_string(offset);
}

std::string SpliceTo(const Args& a) {
  const std::string data = Expand(a[1]);
  int fds[2];
  if (pipe(fds) != 0 || write(fds[1], data.data(), data.size()) < 0) return Errno();
  const std::string result = Outcome(by::Splice(fds[0], Fd(a[0]), data.size(), 0));
  close(fds[0]);
  close(fds[1]);
  return result;
}

std::string SpliceFrom(const Args& a) {
  std::string buffer = Buffer(a[1]);
  int fds[2];
  if (pipe(fds) != 0) return Errno();
  const ssize_t n = by::Splice(Fd(a[0]), fds[1], buffer.size(), 0);
  std::string result = Outcome(n);
  if (n > 0) result = Received(read(fds[0], buffer.data(), buffer.size()), buffer);
  close(fds[0]);
  close(fds[1]);
  return result;
}

std::string NullBuffer(const Args& a) {
  return Outcome(a[1] == "send" ? send(Fd(a[0]), reinterpret_cast<void*>(8), 10, MSG_NOSIGNAL)
                                : recv(Fd(a[0]), reinterpret_cast<void*>(8), 10, 0));
}

std::string Pread(const Args& a) {
  char byte;
  return Outcome(pread(Fd(a[0]), &byte, 1, 0));
}

std::string Lseek(const Args& a) { return Outcome(lseek(Fd(a[0]), 0, SEEK_CUR)); }

// Writes until it would block, and goes on doing so: the kernel finds room once more when it hears
// of what has arrived. How much fits is not compared, only that something did; `drain` gets it all
// again.
std::string Fill(const Args& a) {
  constexpr int kQuietRounds = 6;
  const std::string block(65536, 'f');
  long total = 0;
  for (int quiet = 0; quiet < kQuietRounds; ++quiet) {
    if (quiet > 0) usleep(20000);
    for (const size_t size : {block.size(), size_t{1}}) {
      ssize_t n;
      while ((n = send(Fd(a[0]), block.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) {
        total += n;
        quiet = 0;
      }
    }
  }
  return (total > 0 ? "some, then " : "none, then ") + Errno();
}

// Whether the first n bytes of a block are Fill()'s.
bool IsOfFill(const std::string& block, ssize_t n) {
  static const std::string kFilled(65536, 'f');
  return memcmp(block.data(), kFilled.data(), static_cast<size_t>(n)) == 0;
}

// All that the writer had room for: over a wire it comes in turns, as the window opens.
std::string Drain(const Args& a) {
  constexpr int kQuietMs = 30;
  std::string block(65536, '.');
  bool wrong = false;
  long total = 0;
  pollfd p = {Fd(a[0]), POLLIN, 0};
  ssize_t n;
  do {
    while ((n = recv(p.fd, block.data(), block.size(), MSG_DONTWAIT)) > 0) {
      total += n;
      wrong = wrong || !IsOfFill(block, n);
    }
    const int error = errno;
    const bool more = n < 0 && error == EAGAIN && total > 0 && poll(&p, 1, kQuietMs) > 0;
    errno = error;
    if (!more) break;
  } while (true);
  return std::string(total > 0 ? "some" : "none") + (wrong ? ", wrong bytes" : "") + ", then " +
         (n == 0 ? "end" : Errno());
}

// Everything up to the end, blocking; what came is compared only by its bytes, as part of it was
// drained before.
std::string Rest(const Args& a) {
  std::string block(65536, '.');
  ssize_t n;
  while ((n = recv(Fd(a[0]), block.data(), block.size(), 0)) > 0) {
    if (!IsOfFill(block, n)) return "wrong bytes";
  }
  return n == 0 ? "end" : Errno();
}

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

}  // namespace

const Entry kDataCommands[] = {{"send", 2, Send},
                               {"sendto", 3, Sendto},
                               {"write", 2, Write},
                               {"writev", 2, Writev},
                               {"sendmmsg", 2, Sendmmsg},
                               {"recv", 2, Recv},
                               {"read", 2, Read},
                               {"readv", 2, Readv},
                               {"recvfrom", 2, Recvfrom},
                               {"recvmsg", 2, Recvmsg},
                               {"recvmmsg", 2, Recvmmsg},
                               {"sendfile", 2, Sendfile},
                               {"spliceto", 2, SpliceTo},
                               {"splicefrom", 2, SpliceFrom},
                               {"badbuffer", 2, NullBuffer},
                               {"pread", 1, Pread},
                               {"lseek", 1, Lseek},
                               {"fill", 1, Fill},
                               {"drain", 1, Drain},
                               {"rest", 1, Rest},
                               {"fits", 4, Fits},
                               {"sendmuch", 4, SendMuch},
                               {"sendmany", 2, SendMany},
                               {"recvmany", 2, RecvMany},
                               {nullptr, 0, nullptr}};

}  // namespace conform
