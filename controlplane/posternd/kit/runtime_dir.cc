// runtime_dir.cc - the files of one posternd.
// SPDX-License-Identifier: Apache-2.0
#include "runtime_dir.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ctl/proto.h"

namespace postern::daemon {
namespace {

constexpr int kListenBacklog = 128;
// An old posternd that is leaving gives its lock up within this; one that starts up answers by
// then.
constexpr int kLockTries = 60;
constexpr useconds_t kLockPauseUsec = 50000;
constexpr int kAnswerMs = 50;

bool FillAddress(const std::string& path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return true;
}

}  // namespace

int RuntimeDir::Prepare() {
  const mode_t mode = everyone_ ? 0755 : 0700;
  if (mkdir(path_.c_str(), mode) != 0 && errno != EEXIST) return -errno;
  struct stat st {};
  if (lstat(path_.c_str(), &st) != 0) return -errno;
  if (!S_ISDIR(st.st_mode)) return -ENOTDIR;
  // Where others can write they may have planted files, even if they can't any more in a moment.
  if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) return -EPERM;
  if ((st.st_mode & 0777) != mode && chmod(path_.c_str(), mode) != 0) return -errno;
  // Every later use is by an absolute name, since a daemon changes its working directory.
  char real[4096];
  if (realpath(path_.c_str(), real) == nullptr) return -errno;
  path_ = real;
  return 0;
}

bool RuntimeDir::SomebodyAnswers() const {
  sockaddr_un address;
  if (!FillAddress(Own(".sock"), address)) return false;
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return false;
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return errno == EAGAIN;  // its queue is full: it lives
  // One that was killed has its sockets and its lock until the last of its threads has had the CPU
  // to end. So it is asked: a message of no type is refused, which only a living one does.
  ctl::Msg message;
  if (send(fd.get(), &message, sizeof message, MSG_NOSIGNAL) != sizeof message) return false;
  pollfd hears{fd.get(), POLLIN, 0};
  return poll(&hears, 1, kAnswerMs) == 1 &&
         recv(fd.get(), &message, sizeof message, MSG_DONTWAIT) == sizeof message;
}

int RuntimeDir::Lock() {
  UniqueFd fd(open(Own(".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.ok()) return -errno;
  for (int i = 0; flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK) return -errno;
    if (SomebodyAnswers() || i == kLockTries) return -EALREADY;
    usleep(kLockPauseUsec);
  }
  lock_ = std::move(fd);
  return 0;
}

int RuntimeDir::WritePid() const {
  const std::string path = Own(".pid");
  const std::string next = path + ".new";
  UniqueFd fd(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.ok()) return -errno;
  const std::string text = std::to_string(getpid()) + "\n";
  const ssize_t wrote = write(fd.get(), text.data(), text.size());
  if (wrote != static_cast<ssize_t>(text.size())) return wrote < 0 ? -errno : -ENOSPC;
  return rename(next.c_str(), path.c_str()) == 0 ? 0 : -errno;
}

UniqueFd RuntimeDir::Listen() const {
  const std::string next = Own(".sock.new");
  sockaddr_un address;
  if (!FillAddress(next, address)) {
    errno = ENAMETOOLONG;
    return {};
  }
  unlink(next.c_str());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return fd;
  const bool ready = bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                     chmod(next.c_str(), everyone_ ? 0666 : 0600) == 0 &&
                     listen(fd.get(), kListenBacklog) == 0 &&
                     rename(next.c_str(), Own(".sock").c_str()) == 0;
  if (ready) return fd;
  const int error = errno;
  fd.Reset();
  errno = error;
  return fd;
}

UniqueFd RuntimeDir::ListenAbstract() const {
  sockaddr_un address;
  const socklen_t size = ctl::AbstractName((given_ + "/posternd.sock").c_str(), address);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok() || (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                   listen(fd.get(), kListenBacklog) == 0))
    return fd;
  const int error = errno;
  fd.Reset();
  errno = error;
  return fd;
}

void RuntimeDir::RemoveSocket() const {
  unlink(Own(".sock").c_str());
  unlink(Own(".pid").c_str());
}

}  // namespace postern::daemon
