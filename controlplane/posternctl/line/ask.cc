// ask.cc - one request, one reply with a memfd.
// SPDX-License-Identifier: Apache-2.0
#include "ask.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../../place/default_dir.h"
#include "ctl/msg_packet.h"

namespace postern::ctl_command {
namespace {

time_t patience_sec = 10;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void Throw(const std::string& what, int error) {
  throw AskError(what + ": " + strerror(error));
}

// False when no posternd listens.
bool Connect(int fd, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) Throw(path, ENAMETOOLONG);
  memcpy(address.sun_path, path.data(), path.size());
  const timeval patience{patience_sec, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return true;
  if (errno == ENOENT || errno == ECONNREFUSED) return false;
  Throw(path, errno);
}

int ReceiveReply(int fd, ctl::Msg& reply) {
  ctl::Packet packet(reply);
  const ssize_t got = recvmsg(fd, &packet.header, MSG_CMSG_CLOEXEC);
  if (got < 0) Throw("posternd does not answer", errno);
  const int with = packet.TakeFd(close);
  if (got != sizeof(reply))
    throw AskError("posternd closed the connection (another version, or another user's?)");
  return with;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[65536];
  off_t at = 0;
  for (;;) {
    const ssize_t got = pread(fd, buffer, sizeof(buffer), at);
    if (got < 0) Throw("report", errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    at += got;
  }
}

}  // namespace

void SetPatience(uint32_t seconds) { patience_sec = seconds; }

std::string RuntimeDir(const std::string& given) {
  if (!given.empty()) return given;
  const char* set = getenv("POSTERN_RUNTIME_DIR");
  if (set != nullptr && *set != '\0') return set;
  return DefaultRuntimeDir(false);
}

int AskFd(const std::string& runtime_dir, const ctl::Msg& request) {
  if (runtime_dir.empty()) return -1;
  const Fd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket_fd.get() < 0) Throw("socket", errno);
  if (!Connect(socket_fd.get(), runtime_dir + "/posternd.sock")) return -1;
  ctl::Msg message = request;
  message.seq = 1;
  if (send(socket_fd.get(), &message, sizeof(message), MSG_NOSIGNAL) < 0) Throw("posternd", errno);
  ctl::Msg reply;
  const int fd = ReceiveReply(socket_fd.get(), reply);
  if (reply.status != 0) {
    if (fd >= 0) close(fd);
    Throw("posternd", reply.status);
  }
  if (fd < 0) throw AskError("posternd sent no report");
  return fd;
}

std::string AskText(const std::string& runtime_dir, Report report, uint32_t pid, bool details) {
  ctl::Msg message;
  message.type = ctl::Type::kStatus;
  message.a = static_cast<uint32_t>(report);
  message.b = pid;
  message.c = details ? 1 : 0;
  const Fd memfd(AskFd(runtime_dir, message));
  return memfd.get() < 0 ? "" : ReadAll(memfd.get());
}

Json Ask(const std::string& runtime_dir, Report report, uint32_t pid) {
  const std::string text = AskText(runtime_dir, report, pid);
  return text.empty() ? Json() : Json::parse(text);
}

}  // namespace postern::ctl_command
