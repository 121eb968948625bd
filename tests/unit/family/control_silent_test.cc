// SPDX-License-Identifier: Apache-2.0
// control_silent_test.cc - a posternd that lives and does not answer: what it costs its programs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../../../controlplane/posternd/directory/directory.h"
#include "../kit/catch.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "control/posternd.h"
#include "ctl/msg_packet.h"
#include "family/family.h"
#include "sock/own_family.h"
#include "state/area.h"

namespace postern {
namespace {

// A socket where posternd's is, and this process as a program that has a stack.
class Silent {
 public:
  Silent() {
    REQUIRE(mkdtemp(dir_) != nullptr);
    path_ = std::string(dir_) + "/posternd.sock";
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path, path_.c_str(), path_.size());
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    REQUIRE(listen(listener_, 64) == 0);
    Family& fam = g_family;
    fam.stack_fd = CreateStack(NewUuid());
    fam.view.s = MapStack(fam.stack_fd);
    REQUIRE(fam.view.s != nullptr);
    memcpy(fam.socket_path, path_.c_str(), path_.size() + 1);
    fam.slot = 0;
    fam.attached = true;
  }
  ~Silent() {
    Family& fam = g_family;
    for (const int line : lines_) close(line);
    CtlDrain(fam);  // sees the end
    UnmapStack(fam.view.s);
    close(fam.stack_fd);
    fam.view.s = nullptr;
    fam.stack_fd = -1;
    fam.slot = PSTN_NONE;
    fam.attached = false;
    fam.dir = nullptr;
    fam.socket_path[0] = 0;
    fam.ctl_retry_ns = 0;
    close(listener_);
    unlink(path_.c_str());
    rmdir(dir_);
  }

  void TakeLine() { lines_.push_back(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)); }
  void AnswerHello(const daemon::Directory& directory) {
    ctl::Msg m;
    {
      ctl::Packet packet(m);
      if (recvmsg(lines_.back(), &packet.header, MSG_CMSG_CLOEXEC) != sizeof m) return;
      close(packet.TakeFd(close));
    }
    ctl::Packet packet(m, directory.fd()->get());
    (void)sendmsg(lines_.back(), &packet.header, MSG_NOSIGNAL);
  }
  // Of each question for a link group, that one, until the line ends. How many there were.
  uint32_t AnswerAll(int lgr) {
    uint32_t asked = 0;
    ctl::Msg m;
    while (recv(lines_.back(), &m, sizeof m, 0) == sizeof m) {
      asked += m.type == ctl::Type::kGetLgr ? 1u : 0u;
      const ctl::Packet packet(m, lgr);
      (void)sendmsg(lines_.back(), &packet.header, MSG_NOSIGNAL);
    }
    return asked;
  }

 private:
  char dir_[32] = "/tmp/pstn-silent-XXXXXX";
  std::string path_;
  int listener_ = -1;
  std::vector<int> lines_;
};

long PatienceMs(int line) {
  timeval tv{};
  socklen_t size = sizeof tv;
  REQUIRE(getsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &tv, &size) == 0);
  return tv.tv_sec * 1000 + tv.tv_usec / 1000;
}

}  // namespace

TEST_CASE("control: a silent posternd is waited for once, and then for a part of the time") {
  Silent posternd;
  Family& fam = g_family;
  uint64_t waited_ns = 0, free_ns = 0;
  constexpr int kTries =
      6;  // the first one is how it is found to be silent; the last one has 0.8 s
  for (int i = 0; i < kTries; i++) {
    StoreRelaxed(fam.ctl_retry_ns, 0);  // time has passed
    const uint64_t began = MonotonicNs();
    CtlReconnect(fam);
    const uint64_t ended = MonotonicNs();
    REQUIRE(LoadRelaxed(fam.ctl_fd) < 0);
    posternd.TakeLine();
    if (i == 0) continue;
    waited_ns += ended - began;
    free_ns += LoadRelaxed(fam.ctl_retry_ns) - ended;
  }
  // A 40th; a busy machine lets a thread sleep for longer than it wants to.
  CHECK(waited_ns < free_ns / 10);

  // It comes to, and has all the time for an answer that a program can give it.
  daemon::Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  std::thread answers([&] {
    posternd.TakeLine();
    posternd.AnswerHello(directory);
  });
  StoreRelaxed(fam.ctl_retry_ns, 0);
  CtlReconnect(fam);
  answers.join();
  REQUIRE(LoadRelaxed(fam.ctl_fd) >= 0);
  CHECK(PatienceMs(fam.ctl_fd) == 3000);
}

TEST_CASE("control: a link group that can't be mapped is not asked for by each look") {
  constexpr int kLooks = 2000;
  Silent posternd;
  Family& fam = g_family;
  daemon::Directory directory;
  REQUIRE(directory.Create({7, 8}) == 0);
  const pstn_uuid id = NewUuid();
  const int lgr = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(lgr, PSTN_LGR_BYTES) == 0);
  REQUIRE(fcntl(lgr, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
  uint32_t asked = 0;
  std::thread answers([&] {
    posternd.TakeLine();
    posternd.AnswerHello(directory);
    asked = posternd.AnswerAll(lgr);
  });
  CtlReconnect(fam);
  REQUIRE(LoadRelaxed(fam.ctl_fd) >= 0);
  pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(0));
  ref.side = 1;
  ref.id = id;
  ref.state = 1;
  const uint64_t began = MonotonicNs();
  for (int i = 0; i < kLooks; i++) CHECK(MapLgrOf(fam, 0) == nullptr);
  const uint64_t took_ms = (MonotonicNs() - began) / 1'000'000;
  shutdown(LoadRelaxed(fam.ctl_fd), SHUT_RDWR);
  answers.join();
  CHECK(asked >= 1);
  CHECK(asked <= 2 + took_ms / 100);
  close(lgr);
}

}  // namespace postern
