// conform_names.cc - commands on descriptors as such: duplicates, flags, ranges, passing them on.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "conform.h"

namespace conform {
namespace {

// `closerange FIRST [LAST [cloexec|unshare|bad]]`; LAST may be before FIRST in number: the script
// says EINVAL then.
std::string CloseRange(const Args& args) {
  const int first = Fd(args[0]), last = args.size() > 1 ? Fd(args[1]) : first;
  int flags = 0;
  if (args.size() > 2)
    flags = args[2] == "cloexec"   ? CLOSE_RANGE_CLOEXEC
            : args[2] == "unshare" ? CLOSE_RANGE_UNSHARE
                                   : 64;
  return Outcome(close_range(static_cast<unsigned>(first), static_cast<unsigned>(last), flags));
}

std::string Dup(const Args& args) { return Made(args[1], dup(Fd(args[0]))); }
std::string Dup2(const Args& args) { return Outcome(dup2(Fd(args[0]), Fd(args[1])) >= 0 ? 0 : -1); }
std::string Dup3(const Args& args) {
  return Outcome(dup3(Fd(args[0]), Fd(args[1]), O_CLOEXEC) >= 0 ? 0 : -1);
}
std::string DupFd(const Args& args) {
  const int from = args.size() > 2 ? static_cast<int>(Number(args[2])) : 100;
  return Made(args[1], fcntl(Fd(args[0]), F_DUPFD_CLOEXEC, from));
}
std::string DupFdPlain(const Args& args) { return Made(args[1], fcntl(Fd(args[0]), F_DUPFD, 100)); }

// To a number of its own: `dup2to OLD NEW 240`.
std::string Dup2To(const Args& args) {
  return Made(args[1], dup2(Fd(args[0]), static_cast<int>(Number(args[2]))));
}
std::string Dup3Bad(const Args& args) {
  const int to = args[1] == "same" ? Fd(args[0]) : 240;
  return Outcome(dup3(Fd(args[0]), to, args[1] == "flags" ? 0x7 : 0));
}

// Whether a new descriptor gets the number that a closed one had.
std::string Lowest(const Args& args) {
  const int old = Fd(args[0]);
  const int fd = dup(0);
  const std::string result = fd == old  ? "same number"
                             : fd < old ? "lower number"
                                        : "higher number";
  close(fd);
  return result;
}

std::string GetFlags(const Args& args) {
  const int flags = fcntl(Fd(args[0]), F_GETFL), own = fcntl(Fd(args[0]), F_GETFD);
  if (flags < 0) return Errno();
  return std::string((flags & O_ACCMODE) == O_RDWR ? "rdwr" : "?") +
         ((flags & O_NONBLOCK) != 0 ? " nonblock" : "") + ((flags & O_ASYNC) != 0 ? " async" : "") +
         ((flags & O_APPEND) != 0 ? " append" : "") + ((own & FD_CLOEXEC) != 0 ? " cloexec" : "");
}

std::string SetFlags(const Args& args) {
  int flags = 0;
  for (size_t i = 1; i < args.size(); ++i)
    flags |= args[i] == "nonblock" ? O_NONBLOCK
             : args[i] == "async"  ? O_ASYNC
             : args[i] == "append" ? O_APPEND
             : args[i] == "direct" ? O_DIRECT
                                   : 0;
  return Outcome(fcntl(Fd(args[0]), F_SETFL, flags));
}
std::string SetCloexec(const Args& args) {
  return Outcome(fcntl(Fd(args[0]), F_SETFD, args[1] == "on" ? FD_CLOEXEC : 0));
}

std::string Fstat(const Args& args) {
  struct stat s;
  return fstat(Fd(args[0]), &s) != 0 ? Errno() : S_ISSOCK(s.st_mode) ? "socket" : "something else";
}

constexpr size_t kPassedMax = 8;

// `passfd OVER NAME ...`: one byte with descriptors over a Unix socket.
std::string PassFd(const Args& args) {
  char byte = 'F';
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedMax * sizeof(int))] = {};
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  const size_t count = args.size() - 1;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (size_t i = 0; i < count; ++i) {
    const int fd = Fd(args[i + 1]);
    memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof fd);
  }
  return Outcome(sendmsg(Fd(args[0]), &message, MSG_NOSIGNAL));
}

// What one message over a Unix socket brought, at most `room` of it.
std::vector<int> TakeFds(int over, int flags, size_t room, std::string* what) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(kPassedMax * sizeof(int))] = {};
  iovec piece{&byte, 1};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room > 0 ? control : nullptr;
  message.msg_controllen = room > 0 ? CMSG_SPACE(room * sizeof(int)) : 0;
  const ssize_t n = recvmsg(over, &message, flags);
  *what = n < 0 ? Errno() : n == 0 ? "end" : std::string(1, byte);
  if ((message.msg_flags & MSG_CTRUNC) != 0) *what += " ctrunc";
  std::vector<int> fds;
  cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return fds;
  fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
  return fds;
}

// `takefd OVER [cloexec] NAME ...`; with fewer names than descriptors the rest is cut off.
std::string TakeFd(const Args& args) {
  const bool cloexec = args.size() > 1 && args[1] == "cloexec";
  const Args names = Tail(args, cloexec ? 2 : 1);
  std::string out;
  const auto fds = TakeFds(Fd(args[0]), cloexec ? MSG_CMSG_CLOEXEC : 0, names.size(), &out);
  for (size_t i = 0; i < fds.size(); ++i) {
    if (i < names.size()) SetFd(names[i], fds[i]);
    if (i >= names.size()) close(fds[i]);
  }
  return out + " with " + std::to_string(std::min(fds.size(), names.size()));
}

}  // namespace

bool IsLine(const std::string& name) { return name == "xa" || name == "xb"; }

void DrainLines() {
  for (const auto& [name, over] : AllFds()) {
    std::string what = "F";
    while (IsLine(name) && what[0] != '-' && what != "end") {
      for (const int fd : TakeFds(over, MSG_DONTWAIT, kPassedMax, &what)) close(fd);
    }
  }
}

const Entry kNameCommands[] = {{"closerange", 1, CloseRange},
                               {"dup", 2, Dup},
                               {"dup2", 2, Dup2},
                               {"dup3", 2, Dup3},
                               {"dupfd", 2, DupFd},
                               {"dupfdplain", 2, DupFdPlain},
                               {"dup2to", 3, Dup2To},
                               {"dup3bad", 2, Dup3Bad},
                               {"lowest", 1, Lowest},
                               {"getfl", 1, GetFlags},
                               {"setfl", 2, SetFlags},
                               {"setfd", 2, SetCloexec},
                               {"fstat", 1, Fstat},
                               {"passfd", 2, PassFd},
                               {"takefd", 1, TakeFd},
                               {nullptr, 0, nullptr}};

}  // namespace conform
