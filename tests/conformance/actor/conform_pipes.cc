// conform_pipes.cc - commands that move bytes between a socket and a pipe or a file, at an offset,
// with ancillary data.
// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "conform.h"

namespace conform {
namespace {

constexpr size_t kControlMax = 256;

std::string Pipe(const Args& a) {
  int fds[2];
  if (pipe2(fds, a.size() > 2 && a[2] == "nonblock" ? O_NONBLOCK : 0) != 0) return Errno();
  return Made(a[0], fds[0]) + " " + Made(a[1], fds[1]);
}

// `file NAME DATA [append]`: in memory, at its beginning.
std::string File(const Args& a) {
  const int fd = memfd_create("conform", 0);
  const std::string data = Expand(a[1]);
  if (write(fd, data.data(), data.size()) < 0) return Errno();
  lseek(fd, 0, SEEK_SET);
  if (a.size() > 2 && a[2] == "append") fcntl(fd, F_SETFL, O_APPEND);
  return Made(a[0], fd);
}

std::string Content(const Args& a) {
  std::string data(static_cast<size_t>(1) << 20, '.');
  const ssize_t n = pread(Fd(a[0]), data.data(), data.size(), 0);
  return n < 0 ? Errno() : Data(data.substr(0, static_cast<size_t>(n)));
}

std::string Position(const Args& a) { return Outcome(lseek(Fd(a[0]), 0, SEEK_CUR)); }

unsigned SpliceFlags(const Args& a, size_t from) {
  unsigned flags = 0;
  for (size_t i = from; i < a.size(); ++i)
    flags |= a[i] == "NONBLOCK" ? SPLICE_F_NONBLOCK
             : a[i] == "MORE"   ? SPLICE_F_MORE
             : a[i] == "MOVE"   ? SPLICE_F_MOVE
             : a[i] == "BAD"    ? 0x100u
                                : 0;
  return flags;
}

std::string Splice(const Args& a) {
  return Outcome(splice(Fd(a[0]), nullptr, Fd(a[1]), nullptr, static_cast<size_t>(Number(a[2])),
                        SpliceFlags(a, 3)));
}

// With an offset at that end: `in` or `out`.
std::string SpliceAt(const Args& a) {
  off64_t offset = 0;
  return Outcome(splice(Fd(a[1]), a[0] == "in" ? &offset : nullptr, Fd(a[2]),
                        a[0] == "out" ? &offset : nullptr, 10, 0));
}

std::string Tee(const Args& a) {
  return Outcome(tee(Fd(a[0]), Fd(a[1]), static_cast<size_t>(Number(a[2])), SpliceFlags(a, 3)));
}

// The pipe refers to the pages themselves: they have to stay as they are.
std::string Vmsplice(const Args& a) {
  static std::vector<std::string*> kept;
  kept.push_back(new std::string(Expand(a[1])));
  iovec piece{kept.back()->data(), kept.back()->size()};
  return Outcome(vmsplice(Fd(a[0]), &piece, 1, SpliceFlags(a, 2)));
}

// `sendfileto OUT IN OFFSET|- COUNT`: - is the file's own position.
std::string SendfileTo(const Args& a) {
  off_t offset = a[2] == "-" ? 0 : Number(a[2]);
  const ssize_t n = sendfile(Fd(a[0]), Fd(a[1]), a[2] == "-" ? nullptr : &offset,
                             static_cast<size_t>(Number(a[3])));
  return Outcome(n) + " offset " + std::to_string(offset);
}

std::string CopyFileRange(const Args& a) {
  return Outcome(
      copy_file_range(Fd(a[0]), nullptr, Fd(a[1]), nullptr, static_cast<size_t>(Number(a[2])), 0));
}

int ReadWriteFlags(const Args& a, size_t from) {
  int flags = 0;
  for (size_t i = from; i < a.size(); ++i)
    flags |= a[i] == "NOWAIT"   ? RWF_NOWAIT
             : a[i] == "HIPRI"  ? RWF_HIPRI
             : a[i] == "APPEND" ? RWF_APPEND
             : a[i] == "BAD"    ? 0x4000
                                : 0;
  return flags;
}

// `preadv2 C SIZE OFFSET FLAGS...`
std::string Preadv2(const Args& a) {
  std::string buffer(static_cast<size_t>(Number(a[1])), '.');
  iovec piece{buffer.data(), buffer.size()};
  const ssize_t n = preadv2(Fd(a[0]), &piece, 1, Number(a[2]), ReadWriteFlags(a, 3));
  return n < 0 ? Errno() : std::to_string(n) + " " + Data(buffer.substr(0, static_cast<size_t>(n)));
}

std::string Pwritev2(const Args& a) {
  std::string data = Expand(a[1]);
  iovec piece{data.data(), data.size()};
  return Outcome(pwritev2(Fd(a[0]), &piece, 1, Number(a[2]), ReadWriteFlags(a, 3)));
}

std::string Pwrite(const Args& a) { return Outcome(pwrite(Fd(a[0]), "x", 1, Number(a[1]))); }

std::string ControlText(msghdr* message) {
  std::string out;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    out += " cmsg " + std::to_string(c->cmsg_level) + "/" + std::to_string(c->cmsg_type);
    sock_extended_err error;
    int value;
    const bool errors = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                        (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
    memcpy(&value, CMSG_DATA(c), sizeof value);
    if (c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_CM_INQ)
      out += " inq " + std::to_string(value);
    if (!errors) continue;
    memcpy(&error, CMSG_DATA(c), sizeof error);
    out += " errno " + std::to_string(error.ee_errno) + " origin " +
           std::to_string(error.ee_origin) + " from " + std::to_string(error.ee_info) + " to " +
           std::to_string(error.ee_data);
  }
  return out;
}

// `recvmsgc C SIZE FLAGS...`: what comes with the bytes.
std::string RecvmsgControl(const Args& a) {
  std::string buffer(static_cast<size_t>(Number(a[1])), '.');
  alignas(cmsghdr) char control[kControlMax];
  iovec piece{buffer.data(), buffer.size()};
  msghdr message{nullptr, 0, &piece, 1, control, sizeof control, 0};
  const ssize_t n = recvmsg(Fd(a[0]), &message, MessageFlags(a, 2));
  if (n < 0) return Errno();
  return std::to_string(n) + " " + Data(buffer.substr(0, static_cast<size_t>(n))) + " flags " +
         std::to_string(message.msg_flags) + ControlText(&message);
}

// `sendmsgc C DATA KIND`: with ancillary data that a stream over IP has no use for.
std::string SendmsgControl(const Args& a) {
  std::string data = Expand(a[1]);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec piece{data.data(), data.size()};
  msghdr message{nullptr, 0, &piece, 1, control, sizeof control, 0};
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = a[2] == "short" ? 4 : a[2] == "long" ? 400 : CMSG_LEN(sizeof(int));
  header->cmsg_level = a[2] == "level" ? 7777 : a[2] == "ip" ? IPPROTO_IP : SOL_SOCKET;
  header->cmsg_type = a[2] == "rights" ? SCM_RIGHTS : a[2] == "ip" ? IP_TOS : 7777;
  return Outcome(sendmsg(Fd(a[0]), &message, MSG_NOSIGNAL));
}

// `sendmsgs C FLAGS|- PIECE ...`: several pieces in one message.
std::string SendmsgPieces(const Args& a) {
  std::vector<std::string> data;
  for (size_t i = 2; i < a.size(); ++i) data.push_back(Expand(a[i]));
  std::vector<iovec> pieces;
  for (auto& d : data) pieces.push_back({d.data(), d.size()});
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return Outcome(sendmsg(Fd(a[0]), &message, a[1] == "-" ? 0 : MessageFlags({a[1]}, 0)));
}

// `recvmmsgt C MS SIZE COUNT FLAGS...`: with a timeout, which is looked at only after a message.
std::string RecvmmsgTimeout(const Args& a) {
  const size_t count = static_cast<size_t>(Number(a[3]));
  std::vector<std::string> buffers(count, std::string(static_cast<size_t>(Number(a[2])), '.'));
  std::vector<iovec> pieces(count);
  std::vector<mmsghdr> messages(count);
  for (size_t i = 0; i < count; ++i) {
    pieces[i] = {buffers[i].data(), buffers[i].size()};
    messages[i].msg_hdr.msg_iov = &pieces[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  const long ms = Number(a[1]);
  timespec timeout{ms < 0 ? -1 : ms / 1000, ms < 0 ? 0 : (ms % 1000) * 1000000};
  const int n = recvmmsg(Fd(a[0]), messages.data(), static_cast<unsigned>(count),
                         MessageFlags(a, 4), &timeout);
  std::string out = Outcome(n);
  for (size_t i = 0; i < count && static_cast<int>(i) < n; ++i)
    out += " " + Data(buffers[i].substr(0, messages[i].msg_len));
  return out;
}

// Calls with vectors and messages where no memory is, or with more pieces than there may be.
std::string BadVector(const Args& a) {
  auto* nowhere = static_cast<iovec*>(Nowhere());
  const int fd = Fd(a[1]);
  const int minus = static_cast<int>(Number("-1"));
  char byte = 'x';
  iovec pieces[1025];
  for (auto& piece : pieces) piece = {&byte, 1};
  iovec negative{&byte, static_cast<size_t>(-1)};
  msghdr many{};
  many.msg_iov = pieces;
  many.msg_iovlen = 1025;
  if (a[0] == "readv") return Outcome(readv(fd, nowhere, 1));
  if (a[0] == "writev") return Outcome(writev(fd, nowhere, 1));
  if (a[0] == "readvmany") return Outcome(readv(fd, pieces, 1025));
  if (a[0] == "writevmany") return Outcome(writev(fd, pieces, 1025));
  if (a[0] == "readvnegative") return Outcome(readv(fd, &negative, 1));
  if (a[0] == "writevnegative") return Outcome(writev(fd, &negative, 1));
  if (a[0] == "readvcount") return Outcome(readv(fd, pieces, minus));
  if (a[0] == "writevcount") return Outcome(writev(fd, pieces, minus));
  if (a[0] == "readvnone") return Outcome(readv(fd, pieces, 0));
  if (a[0] == "writevnone") return Outcome(writev(fd, pieces, 0));
  if (a[0] == "sendmsgmany") return Outcome(sendmsg(fd, &many, MSG_NOSIGNAL));
  if (a[0] == "recvmsgmany") return Outcome(recvmsg(fd, &many, MSG_DONTWAIT));
  if (a[0] == "sendmsg") return Outcome(sendmsg(fd, static_cast<msghdr*>(Nowhere()), MSG_NOSIGNAL));
  if (a[0] == "recvmsg") return Outcome(recvmsg(fd, static_cast<msghdr*>(Nowhere()), MSG_DONTWAIT));
  if (a[0] == "sendmmsg")
    return Outcome(sendmmsg(fd, static_cast<mmsghdr*>(Nowhere()), 1, MSG_NOSIGNAL));
  if (a[0] == "recvmmsg")
    return Outcome(recvmmsg(fd, static_cast<mmsghdr*>(Nowhere()), 1, MSG_DONTWAIT, nullptr));
  if (a[0] == "sendmmsgnone") return Outcome(sendmmsg(fd, nullptr, 0, 0));
  if (a[0] == "recvmmsgnone") return Outcome(recvmmsg(fd, nullptr, 0, MSG_DONTWAIT, nullptr));
  if (a[0] == "sendmsgnone")
    return Outcome((many.msg_iovlen = 0, sendmsg(fd, &many, MSG_NOSIGNAL)));
  if (a[0] == "recvmsgnone")
    return Outcome((many.msg_iovlen = 0, recvmsg(fd, &many, MSG_DONTWAIT)));
  return "SCRIPT ERROR";
}

}  // namespace

const Entry kPipeCommands[] = {{"pipe", 2, Pipe},
                               {"file", 2, File},
                               {"content", 1, Content},
                               {"position", 1, Position},
                               {"splice", 3, Splice},
                               {"spliceat", 3, SpliceAt},
                               {"tee", 3, Tee},
                               {"vmsplice", 2, Vmsplice},
                               {"sendfileto", 4, SendfileTo},
                               {"copyfilerange", 3, CopyFileRange},
                               {"preadv2", 3, Preadv2},
                               {"pwritev2", 3, Pwritev2},
                               {"pwrite", 2, Pwrite},
                               {"recvmsgc", 2, RecvmsgControl},
                               {"sendmsgc", 3, SendmsgControl},
                               {"sendmsgs", 3, SendmsgPieces},
                               {"recvmmsgt", 4, RecvmmsgTimeout},
                               {"badvector", 2, BadVector},
                               {nullptr, 0, nullptr}};

}  // namespace conform
