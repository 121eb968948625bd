// selftest_fake_server.h - a server of the self-test's own, for a client that runs under `postern`.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../selftest.h"
#include "../selftest_world.h"

namespace postern::ctl_command::selftest {

// A client's first half of a handshake with the true server: as long as it lasts, its token leads
// to that server's listener.
class Lent {
 public:
  explicit Lent(World& world);
  uint64_t token() const { return accept_.token; }
  const ClcAccept& accept() const { return accept_; }
  Wire& wire() { return wire_; }

 private:
  Wire wire_;
  ClcAccept accept_;
};

class FakeServer {
 public:
  explicit FakeServer(World& world, Mark mark = Mark::kMarked);

  // The program connects; the first connection that comes of it is `wire()`.
  void Meet(Process& program);
  Wire& wire() { return wire_; }
  // Exactly one message of that type; throws if something else comes.
  Bytes Take(ClcType type);
  // An Accept as it should be, but for the token.
  ClcAccept MakeAccept(uint64_t token) const;
  // Echoes whatever comes on whichever connection, until the program has its data, and says which
  // way it went. `code` as the outcome's. With `behind` the first connection is not echoed, but
  // joined to that one.
  Outcome Serve(const std::string& code = "", Wire* behind = nullptr);
  // The client declines and the data comes on this connection.
  Outcome TakeDecline();

 private:
  Outcome Judge(const std::string& said, const std::string& code);

  World& world_;
  uint16_t port_;
  Fd listener_;
  Wire wire_;
  size_t first_bytes_ = 0, later_bytes_ = 0;
  Process* program_ = nullptr;
};

}  // namespace postern::ctl_command::selftest
