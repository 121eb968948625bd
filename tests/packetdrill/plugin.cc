// SPDX-License-Identifier: Apache-2.0
// plugin.cc - libpostern_packetdrill.so: anybody's packetdrill, with its scripts, drives Postern's
// TCP.
//
//   packetdrill --so_filename=.../libpostern_packetdrill.so [--so_flags=seed=N,sysctl:NAME=VALUE]
//   SCRIPT
//
// Code blocks, %{ assert tcpi_... }%, ask by libc's getsockopt(), not by the interface; a plug-in
// that is preloaded as well (LD_PRELOAD) answers them. What it can't do, or has no part in: epoll,
// pipe, splice; TCP_REPAIR, TCP_FASTOPEN, TCP_MD5SIG, MSG_ZEROCOPY, MSG_ERRQUEUE, SO_TIMESTAMPING,
// which are sockets' or the kernel's; TCP_CC_INFO and SO_MEMINFO, which are 0; packets of several
// segments: a script that wants those is played by our own runner, which takes segments together.
//
// Commands between backquotes are packetdrill's own: it runs them, and a script's sysctl lines
// change the host. So it wants `unshare -n`, and the plug-in its settings by --so_flags.
//
// Time is virtual: it goes on when packetdrill sleeps, waits for a packet, or asks for the time
// again and again (its way of waiting for the last microseconds). A script of an hour takes no
// time, and a busy machine changes nothing.
//
// packetdrill has two threads: one plays events, the other makes the calls that are expected to
// block. A blocked call sleeps here until time or packets have moved; when it returns, its thread
// asks for the time at once, to know when that was. So time stands still from its wake-up until
// then.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "../scripts/sut.h"
#include "plugin_interface.h"

namespace postern::scripts {
namespace {

constexpr uint64_t kUs = 1000;
constexpr uint64_t kReceiveNs =
    120'000'000'000;  // of virtual time, without a packet: none will come
constexpr auto kReturnMax = std::chrono::seconds(2);  // of real time, for a thread to run at all

class Plugin {
 public:
  explicit Plugin(const char* flags) : sut_(MakeTcpSut(Seed(flags))) { Flags(flags); }

  // Makes a call, again and again while it blocks.
  template <typename Make>
  long Call(Make make) {
    std::unique_lock lock(mutex_);
    long result = make(*sut_);
    while (result == kBlocked) {
      waiting_++;
      const uint64_t seen = moves_;
      moved_.wait(lock, [&] { return moves_ != seen; });
      waiting_--;
      result = make(*sut_);
      tried_++;
      if (result != kBlocked) {
        returning_ = std::this_thread::get_id();
        has_returning_ = true;
      }
      moved_.notify_all();
    }
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    return -1;
  }

  uint64_t NowNs() {
    std::unique_lock lock(mutex_);
    if (has_returning_ && returning_ == std::this_thread::get_id()) {
      has_returning_ = false;
      moved_.notify_all();
    } else {
      // A script that asks so often is waiting.
      Advance(lock, sut_->NowNs() + kUs);
    }
    return sut_->NowNs();
  }

  void Sleep(uint64_t ns) {
    std::unique_lock lock(mutex_);
    Advance(lock, sut_->NowNs() + ns);
  }

  void In(const void* packet, size_t bytes) {
    std::unique_lock lock(mutex_);
    sut_->PacketIn(static_cast<const uint8_t*>(packet), bytes);
    Moved(lock);
  }

  bool Out(Bytes& packet, uint64_t& sent_ns) {
    std::unique_lock lock(mutex_);
    const uint64_t end_ns = sut_->NowNs() + kReceiveNs;
    while (!sut_->PacketOut(packet, sent_ns)) {
      const uint64_t next_ns = sut_->NextDeadlineNs();
      if (next_ns > end_ns) return false;
      Advance(lock, next_ns);
    }
    return true;
  }

 private:
  static uint64_t Seed(const char* flags) {
    const char* seed = flags == nullptr ? nullptr : strstr(flags, "seed=");
    return seed == nullptr ? 1 : strtoull(seed + 5, nullptr, 0);
  }

  void Flags(const char* flags) {
    std::string left = flags == nullptr ? "" : flags;
    while (!left.empty()) {
      const size_t comma = std::min(left.find(','), left.size());
      const std::string flag = left.substr(0, comma);
      left.erase(0, comma + 1);
      const size_t equals = flag.find('=');
      if (equals == std::string::npos) continue;
      if (flag.rfind("sysctl:", 0) == 0)
        sut_->Sysctl(flag.substr(7, equals - 7), flag.substr(equals + 1));
      if (flag.rfind("mtu=", 0) == 0)
        sut_->SetMtu(static_cast<uint32_t>(atoi(flag.c_str() + equals + 1)));
    }
  }

  // Something has happened: blocked calls try again, and time stands still until all have, and
  // until one that has got through has noted the time.
  void Moved(std::unique_lock<std::mutex>& lock) {
    if (waiting_ == 0) return;
    const uint64_t wanted = tried_ + waiting_;
    moves_++;
    moved_.notify_all();
    moved_.wait_for(lock, kReturnMax, [&] { return tried_ >= wanted; });
    moved_.wait_for(lock, kReturnMax, [&] { return !has_returning_; });
  }

  void Advance(std::unique_lock<std::mutex>& lock, uint64_t to_ns) {
    while (sut_->NowNs() < to_ns) {
      const uint64_t next_ns = std::max(sut_->NextDeadlineNs(), sut_->NowNs() + 1);
      sut_->AdvanceTo(std::min(next_ns, to_ns));
      Moved(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::unique_ptr<Sut> sut_;
  uint64_t moves_ = 0, tried_ = 0, waiting_ = 0;
  bool has_returning_ = false;
  std::thread::id returning_;
};

Plugin& Of(void* self) { return *static_cast<Plugin*>(self); }

Plugin* g_plugin;  // for code blocks: see getsockopt() below

// ---- calls

int Socket(void* self, int domain, int type, int protocol) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Socket(domain, type, protocol); }));
}
int Bind(void* self, int fd, const sockaddr* address, socklen_t bytes) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Bind(fd, address, bytes); }));
}
int Listen(void* self, int fd, int backlog) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Listen(fd, backlog); }));
}
int Accept(void* self, int fd, sockaddr* address, socklen_t* bytes) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Accept(fd, address, bytes, 0); }));
}
int Connect(void* self, int fd, const sockaddr* address, socklen_t bytes) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Connect(fd, address, bytes); }));
}

ssize_t Recv(void* self, int fd, void* data, size_t bytes, int flags) {
  return Of(self).Call([=](Sut& s) { return s.Recv(fd, data, bytes, flags); });
}
ssize_t Read(void* self, int fd, void* data, size_t bytes) {
  return Recv(self, fd, data, bytes, 0);
}
ssize_t RecvFrom(void* self, int fd, void* data, size_t bytes, int flags, sockaddr*,
                 socklen_t* from_bytes) {
  if (from_bytes != nullptr) *from_bytes = 0;  // as Linux for TCP
  return Recv(self, fd, data, bytes, flags);
}
size_t Total(const iovec* pieces, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += pieces[i].iov_len;
  return bytes;
}
ssize_t RecvPieces(void* self, int fd, const iovec* pieces, size_t count, int flags) {
  Bytes data(Total(pieces, count));
  const ssize_t got = Recv(self, fd, data.data(), data.size(), flags);
  size_t done = 0;
  for (size_t i = 0; got > 0 && i < count && done < static_cast<size_t>(got); i++) {
    const size_t chunk = std::min(pieces[i].iov_len, static_cast<size_t>(got) - done);
    memcpy(pieces[i].iov_base, data.data() + done, chunk);
    done += chunk;
  }
  return got;
}
ssize_t ReadV(void* self, int fd, const iovec* pieces, int count) {
  return RecvPieces(self, fd, pieces, static_cast<size_t>(count), 0);
}
ssize_t RecvMsg(void* self, int fd, msghdr* message, int flags) {
  message->msg_flags = 0;
  message->msg_controllen = 0;
  return RecvPieces(self, fd, message->msg_iov, message->msg_iovlen, flags);
}

ssize_t Send(void* self, int fd, const void* data, size_t bytes, int flags) {
  return Of(self).Call([=](Sut& s) { return s.Send(fd, data, bytes, flags); });
}
ssize_t Write(void* self, int fd, const void* data, size_t bytes) {
  return Send(self, fd, data, bytes, 0);
}
ssize_t SendTo(void* self, int fd, const void* data, size_t bytes, int flags, const sockaddr*,
               socklen_t) {
  return Send(self, fd, data, bytes, flags);
}
ssize_t SendPieces(void* self, int fd, const iovec* pieces, size_t count, int flags) {
  Bytes data;
  for (size_t i = 0; i < count; i++) {
    const auto* from = static_cast<const uint8_t*>(pieces[i].iov_base);
    data.insert(data.end(), from, from + pieces[i].iov_len);
  }
  return Send(self, fd, data.data(), data.size(), flags);
}
ssize_t WriteV(void* self, int fd, const iovec* pieces, int count) {
  return SendPieces(self, fd, pieces, static_cast<size_t>(count), 0);
}
ssize_t SendMsg(void* self, int fd, const msghdr* message, int flags) {
  return SendPieces(self, fd, message->msg_iov, message->msg_iovlen, flags);
}

int Fcntl(void* self, int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const int argument = va_arg(list, int);
  va_end(list);
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Fcntl(fd, command, argument); }));
}
int Ioctl(void* self, int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  int* argument = va_arg(list, int*);
  va_end(list);
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Ioctl(fd, request, argument); }));
}
int Close(void* self, int fd) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Close(fd); }));
}
int Shutdown(void* self, int fd, int how) {
  return static_cast<int>(Of(self).Call([=](Sut& s) { return s.Shutdown(fd, how); }));
}
int GetSockOpt(void* self, int fd, int level, int name, void* value, socklen_t* bytes) {
  return static_cast<int>(
      Of(self).Call([=](Sut& s) { return s.GetSockOpt(fd, level, name, value, bytes); }));
}
int SetSockOpt(void* self, int fd, int level, int name, const void* value, socklen_t bytes) {
  return static_cast<int>(
      Of(self).Call([=](Sut& s) { return s.SetSockOpt(fd, level, name, value, bytes); }));
}
int Poll(void* self, pollfd* fds, nfds_t count, int timeout_ms) {
  uint64_t end_ns = 0;
  return static_cast<int>(Of(self).Call([=](Sut& s) mutable {
    const long ready = s.Poll(fds, count);
    if (end_ns == 0)
      end_ns =
          timeout_ms < 0 ? UINT64_MAX : s.NowNs() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
    return ready != 0 || s.NowNs() >= end_ns ? ready : kBlocked;
  }));
}

// ---- wire and time

int NetdevSend(void* self, const void* packet, size_t bytes) {
  Of(self).In(packet, bytes);
  return 0;
}
int NetdevReceive(void* self, void* packet, size_t* bytes, long long* sent_us) {
  Bytes out;
  uint64_t sent_ns = 0;
  if (!Of(self).Out(out, sent_ns) || out.size() > *bytes) {
    *bytes = 0;
    return 0;
  }
  memcpy(packet, out.data(), out.size());
  *bytes = out.size();
  *sent_us = static_cast<long long>(sent_ns / kUs);
  return 0;
}
int USleep(void* self, useconds_t us) {
  Of(self).Sleep(us * kUs);
  return 0;
}
int GetTimeOfDay(void* self, timeval* now, struct timezone*) {
  const uint64_t us = Of(self).NowNs() / kUs;
  now->tv_sec = static_cast<time_t>(us / 1'000'000);
  now->tv_usec = static_cast<suseconds_t>(us % 1'000'000);
  return 0;
}

// ---- what TCP alone does not have
int NotThere() {
  errno = ENOSYS;
  return -1;
}
int EpollCreate(void*, int) { return NotThere(); }
int EpollCtl(void*, int, int, int, epoll_event*) { return NotThere(); }
int EpollWait(void*, int, epoll_event*, int, int) { return NotThere(); }
int Pipe(void*, int*) { return NotThere(); }
int Splice(void*, int, loff_t*, int, loff_t*, size_t, unsigned int) { return NotThere(); }

void Free(void* self) {
  delete static_cast<Plugin*>(self);
  g_plugin = nullptr;
}

}  // namespace
}  // namespace postern::scripts

extern "C" void packetdrill_interface_init(const char* flags, packetdrill_interface* table) {
  using namespace postern::scripts;  // NOLINT(google-build-using-namespace): its only entry
  g_plugin = new Plugin(flags);
  *table = packetdrill_interface{
      .userdata = g_plugin,
      .free = Free,
      .socket = Socket,
      .bind = Bind,
      .listen = Listen,
      .accept = Accept,
      .connect = Connect,
      .read = Read,
      .readv = ReadV,
      .recv = Recv,
      .recvfrom = RecvFrom,
      .recvmsg = RecvMsg,
      .write = Write,
      .writev = WriteV,
      .send = Send,
      .sendto = SendTo,
      .sendmsg = SendMsg,
      .fcntl = Fcntl,
      .ioctl = Ioctl,
      .close = Close,
      .shutdown = Shutdown,
      .getsockopt = GetSockOpt,
      .setsockopt = SetSockOpt,
      .poll = Poll,
      .netdev_send = NetdevSend,
      .netdev_receive = NetdevReceive,
      .usleep = USleep,
      .gettimeofday = GetTimeOfDay,
      .epoll_create = EpollCreate,
      .epoll_ctl = EpollCtl,
      .epoll_wait = EpollWait,
      .pipe = Pipe,
      .splice = Splice,
  };
}

// Of packetdrill's code blocks, where this is preloaded; anything else is the kernel's.
extern "C" __attribute__((visibility("default"))) int getsockopt(int fd, int level, int name,
                                                                 void* value, socklen_t* bytes) {
  using namespace postern::scripts;  // NOLINT(google-build-using-namespace): as above
  const bool info = level == IPPROTO_TCP && name == TCP_INFO;
  const bool zero =
      (level == IPPROTO_TCP && name == TCP_CC_INFO) || (level == SOL_SOCKET && name == SO_MEMINFO);
  if (g_plugin == nullptr || !(info || zero))
    return static_cast<int>(syscall(SYS_getsockopt, fd, level, name, value, bytes));
  if (info) return GetSockOpt(g_plugin, fd, level, name, value, bytes);
  memset(value, 0, *bytes);
  return 0;
}
