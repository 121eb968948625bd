// bells.cc - see bells.h.
// SPDX-License-Identifier: Apache-2.0
#include "bells.h"

#include <cap-ng.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "../guard/quiet_thread.h"
#include "../kit/log.h"
#include "base/no_descriptors.h"
#include "smcd/notify.h"

namespace postern::daemon {
namespace {

int EnterOrMake(const std::string& keep) {
  UniqueFd kept(open(keep.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (kept.ok() && ioctl(kept.get(), NS_GET_NSTYPE) == CLONE_NEWNET)
    return setns(kept.get(), CLONE_NEWNET) == 0 ? 0 : -errno;
  if (unshare(CLONE_NEWNET) != 0) return -errno;
  UniqueFd place(open(keep.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0400));
  if (!place.ok() ||
      mount("/proc/thread-self/ns/net", keep.c_str(), nullptr, MS_BIND, nullptr) != 0)
    Warn("%s: %s: after a restart, containers that met before will not wake each other",
         keep.c_str(), strerror(errno));
  return 0;
}

// Takes a name of the kernel's choice, so that it can't be given another one.
int OpenSender() {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr any{};
  any.sa_family = AF_UNIX;
  if (fd.ok()) (void)RefuseDescriptors(fd.get());  // that name, too, can be sent to
  if (!fd.ok() || bind(fd.get(), &any, sizeof(any.sa_family)) != 0) return -errno;
  return fd.Release();
}

}  // namespace

void BellSpace::Serve(const std::string& keep) {
  const int error = EnterOrMake(keep);
  capng_clear(CAPNG_SELECT_BOTH);
  (void)capng_apply(CAPNG_SELECT_CAPS);
  std::unique_lock lock(mutex_);
  answer_ = error;
  turn_ = Turn::kAnswered;
  changed_.notify_all();
  for (;;) {
    changed_.wait(lock, [this] { return turn_ == Turn::kAsked || turn_ == Turn::kEnd; });
    if (turn_ == Turn::kEnd) return;
    answer_ = name_.waiter == PSTN_NONE ? OpenSender() : OpenBell(name_);
    turn_ = Turn::kAnswered;
    changed_.notify_all();
  }
}

int BellSpace::Enter(const std::string& keep) {
  thread_ = QuietThread([this, keep] { Serve(keep); });
  int error;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return turn_ == Turn::kAnswered; });
    error = answer_;
    turn_ = error == 0 ? Turn::kNobody : Turn::kEnd;
    changed_.notify_all();
  }
  if (error != 0) thread_.join();
  return error;
}

UniqueFd BellSpace::Open(const BellName& name) {
  std::unique_lock lock(mutex_);
  name_ = name;
  turn_ = Turn::kAsked;
  changed_.notify_all();
  changed_.wait(lock, [this] { return turn_ == Turn::kAnswered; });
  turn_ = Turn::kNobody;
  if (answer_ < 0) errno = -answer_;
  return UniqueFd(answer_ < 0 ? -1 : answer_);
}

BellSpace::~BellSpace() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    turn_ = Turn::kEnd;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace postern::daemon
