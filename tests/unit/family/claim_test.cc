// claim_test.cc - the names that a client may give its connection.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cstring>
#include <initializer_list>
#include <memory>

#include "../kit/catch.h"
#include "event/block.h"
#include "family/family.h"
#include "peer/claim.h"
#include "sock/own_family.h"

namespace postern {
namespace {

pstn_addr At(const char* ip, uint16_t port = 5000) {
  pstn_addr a = {};
  if (inet_pton(AF_INET, ip, a.ip + 12) == 1) {
    a.ip[10] = a.ip[11] = 0xff;
  } else {
    REQUIRE(inet_pton(AF_INET6, ip, a.ip) == 1);
  }
  a.port = port;
  return a;
}

// This network namespace has 10.0.0.1 and fd00::1.
struct Here {
  Here() : before(g_family.dir) {
    dir->addrs[0] = At("10.0.0.1", 0);
    dir->addrs[1] = At("fd00::1", 0);
    dir->addr_count = 2;
    g_family.dir = dir.get();
    listener->family = AF_INET6;
    listener->local.port = 80;
  }
  ~Here() { g_family.dir = before; }
  bool operator()(uint32_t remote, const char* client, const char* server,
                  uint16_t port = 5000) const {
    return IsCredible(g_family, *listener, remote, At(client, port), At(server, 80));
  }
  const pstn_dir* const before;
  const std::unique_ptr<pstn_dir> dir = std::make_unique<pstn_dir>();
  const std::unique_ptr<pstn_ep> listener = std::make_unique<pstn_ep>();
};

TEST_CASE("claim: what another user of this network namespace can have") {
  const Here ok;
  for (uint32_t remote : {PSTN_LGR_SAME_USER, PSTN_LGR_OTHER_USER}) {
    CHECK(ok(remote, "127.0.0.1", "127.0.0.1"));
    CHECK(ok(remote, "127.0.0.2", "127.3.4.5"));
    CHECK(ok(remote, "10.0.0.1", "127.0.0.1"));
    CHECK(ok(remote, "fd00::1", "::1"));
    CHECK_FALSE(ok(remote, "10.0.0.2", "10.0.0.1"));  // not of this host
    CHECK_FALSE(ok(remote, "10.0.0.2", "10.0.0.2"));  // nor is that
    CHECK_FALSE(ok(remote, "::1", "127.0.0.1"));      // no connection is of both
    CHECK_FALSE(ok(remote, "127.0.0.1", "127.0.0.1", 1023));
    CHECK_FALSE(ok(remote, "0.0.0.0", "127.0.0.1"));
  }
}

TEST_CASE("claim: nobody from another network namespace comes from here") {
  const Here ok;
  constexpr uint32_t kOther = PSTN_LGR_OTHER_NETNS;
  CHECK(ok(kOther, "10.0.0.2", "10.0.0.1"));
  CHECK(ok(kOther, "192.168.7.7", "10.0.0.1"));
  CHECK(ok(kOther, "fd00::2", "fd00::1"));
  CHECK_FALSE(ok(kOther, "127.0.0.1", "127.0.0.1"));
  CHECK_FALSE(ok(kOther, "127.0.0.1", "10.0.0.1"));
  CHECK_FALSE(ok(kOther, "10.0.0.1", "10.0.0.1"));
  CHECK_FALSE(ok(kOther, "10.0.0.2", "127.0.0.1"));
  CHECK_FALSE(ok(kOther, "10.0.0.2", "10.0.0.3"));
  CHECK_FALSE(ok(kOther, "0.0.0.0", "10.0.0.1"));
  CHECK_FALSE(ok(kOther, "::1", "fd00::1"));
  CHECK_FALSE(ok(kOther, "10.0.0.2", "10.0.0.1", 22));
}

TEST_CASE("claim: a listener's own address and family are kept to") {
  const Here ok;
  ok.listener->local = At("10.0.0.1", 80);
  CHECK(ok(PSTN_LGR_OTHER_USER, "10.0.0.1", "10.0.0.1"));
  CHECK_FALSE(ok(PSTN_LGR_OTHER_USER, "127.0.0.1", "127.0.0.1"));
  ok.listener->local = At("0.0.0.0", 81);
  CHECK_FALSE(ok(PSTN_LGR_OTHER_USER, "10.0.0.1", "10.0.0.1"));
  ok.listener->local = {};
  ok.listener->local.port = 80;
  ok.listener->family = AF_INET;
  CHECK(ok(PSTN_LGR_OTHER_USER, "127.0.0.1", "127.0.0.1"));
  CHECK_FALSE(ok(PSTN_LGR_OTHER_USER, "::1", "::1"));
}

}  // namespace
}  // namespace postern
