// turns_test.cc - lines that are served in turns: no user's messages wait for all of another's, and
// a line that takes no answers is asked for no more of them.
// SPDX-License-Identifier: Apache-2.0
#include <event2/event.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "../../../controlplane/posternd/line/client.h"
#include "../../../controlplane/posternd/line/turns.h"
#include "../kit/catch.h"
#include "ctl/msg_packet.h"

namespace postern::daemon {
namespace {

constexpr uid_t kFlooder = 1, kOther = 2;

class Lines {
 public:
  ~Lines() {
    lines_.clear();
    for (const int fd : ends_) close(fd);
  }
  // The far end of a new line.
  int Add(uid_t uid, uint32_t fds_max = 100) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    lines_.push_back(std::make_unique<Client>(
        base_.get(), UniqueFd(ends[0]), ucred{getpid(), uid, 0},
        [this](Client& c, const ctl::Msg& m, UniqueFd) {
          served.push_back(c.uid());
          if (on_message) on_message(c, m);
        },
        [this](Client&) { gone++; }));
    lines_.back()->ServeInTurns(turns_, fds_, fds_max);
    ends_.push_back(ends[1]);
    return ends[1];
  }
  Client& last() { return *lines_.back(); }
  void Run() { event_base_loop(base_.get(), EVLOOP_ONCE | EVLOOP_NONBLOCK); }
  // Until nothing happens any more.
  void Settle() {
    for (size_t before = SIZE_MAX; before != served.size();) {
      before = served.size();
      for (int i = 0; i < 20; i++) Run();
    }
  }
  std::vector<uid_t> served;
  std::function<void(Client&, const ctl::Msg&)> on_message;
  int gone = 0;

 private:
  std::unique_ptr<event_base, void (*)(event_base*)> base_{event_base_new(), event_base_free};
  Quota fds_;
  Turns turns_{base_.get()};
  std::list<std::unique_ptr<Client>> lines_;
  std::vector<int> ends_;
};

bool Say(int fd) {
  ctl::Msg message;
  ctl::Packet packet(message, -1);
  return sendmsg(fd, &packet.header, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(message);
}

// How many messages there are to be read, and descriptors with them.
int Read(int fd, int& fds, int most = 1 << 30) {
  int count = 0;
  fds = 0;
  for (; count < most; count++) {
    ctl::Msg message;
    ctl::Packet packet(message);
    if (recvmsg(fd, &packet.header, MSG_DONTWAIT) != sizeof(message)) break;
    const int with = packet.TakeFd(close);
    fds += with >= 0 ? 1 : 0;
    if (with >= 0) close(with);
  }
  return count;
}

}  // namespace

TEST_CASE("turns: a user's many lines do not hold up another user's one") {
  Lines lines;
  for (int i = 0; i < 20; i++) {
    const int fd = lines.Add(kFlooder);
    for (int n = 0; n < 50; n++) REQUIRE(Say(fd));
  }
  REQUIRE(Say(lines.Add(kOther)));
  lines.Settle();
  REQUIRE(lines.served.size() == 1001);
  const auto at = std::find(lines.served.begin(), lines.served.end(), kOther);
  CHECK(at - lines.served.begin() <= 32);
}

TEST_CASE("turns: a line that takes no answers is read no further, and loses nothing") {
  Lines lines;
  const int fd = lines.Add(kFlooder);
  lines.on_message = [](Client& client, const ctl::Msg& message) {
    for (int i = 0; i < 10; i++) client.Reply(message, 0);
  };
  int said = 0, heard = 0, fds = 0;
  for (; said < 2000; said++) {
    while (said < 2000 && Say(fd)) said++;
    lines.Settle();
    if (!Say(fd)) break;
  }
  REQUIRE(said < 2000);  // it is not asked for ever
  CHECK(lines.last().queued() <= kUnansweredMax + 10);
  CHECK(lines.gone == 0);
  for (int n = -1; n != 0;) {
    n = Read(fd, fds);
    heard += n;
    lines.Settle();
  }
  CHECK(heard == 10 * said);
}

TEST_CASE("turns: descriptors that no process has taken are few") {
  Lines lines;
  const int fd = lines.Add(kFlooder, 3);
  for (int i = 0; i < 10; i++)
    lines.last().Send({}, Share(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))));
  int fds = 0, all = 0;
  CHECK(Read(fd, fds) == 3);
  CHECK(fds == 3);
  for (all = 3; all < 10; all += fds) {
    lines.Run();
    Read(fd, fds);
    CHECK(fds <= 3);
  }
  CHECK(all == 10);
  CHECK(lines.gone == 0);
}

}  // namespace postern::daemon
