// policy_test.cc - the broker's rules: the first that fits, and what is said of a bad file.
// SPDX-License-Identifier: Apache-2.0
#include "../../../controlplane/posternd/broker/policy.h"

#include <initializer_list>

#include "../../../controlplane/posternd/kit/rate_limit.h"
#include "../kit/catch.h"

using postern::daemon::Policy;
using postern::daemon::RateLimit;
using postern::daemon::SameHost;
using postern::daemon::Who;

namespace {

Policy Good(const char* text) {
  std::string error;
  std::optional<Policy> policy = Policy::Parse(text, error);
  INFO(error);
  REQUIRE(policy.has_value());
  return *policy;
}

std::string Bad(const char* text) {
  std::string error;
  CHECK_FALSE(Policy::Parse(text, error).has_value());
  return error;
}

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

Who Of(uid_t uid, const char* cgroup = "/") {
  Who who;
  who.uid = uid;
  who.gid = uid;
  who.cgroup = cgroup;
  return who;
}

}  // namespace

TEST_CASE("without a file everybody may reach everybody") {
  std::string error;
  const std::optional<Policy> none = Policy::Load("/no/such/file", error);
  REQUIRE(none.has_value());
  CHECK(none->Allows(Of(1), Of(2), 80));
  CHECK_FALSE(Policy::Load("/proc/self/mem", error).has_value());  // there, and can't be read
  CHECK(Has(error, "/proc/self/mem"));
}

TEST_CASE("the first rule that fits decides") {
  const Policy p = Good(R"({"default": "deny", "rules": [
      {"from": {"user": 7}, "to": {"user": 8}, "ports": "80,8000-8999", "verdict": "allow"},
      {"from": {"user": 7}, "verdict": "deny"},
      {"to": {"cgroup": "/open/"}, "verdict": "allow"}]})");
  CHECK(p.Allows(Of(7), Of(8), 80));
  CHECK(p.Allows(Of(7), Of(8), 8500));
  CHECK_FALSE(p.Allows(Of(7), Of(8), 81));
  CHECK_FALSE(p.Allows(Of(7), Of(9, "/open/a"), 80));
  CHECK(p.Allows(Of(6), Of(9, "/open/a"), 80));
  CHECK_FALSE(p.Allows(Of(6), Of(9, "/opener"), 80));
  CHECK_FALSE(p.Allows(Of(6), Of(9), 80));
}

TEST_CASE("users and groups have names, quotas are numbers") {
  const Policy p = Good(
      R"({"links": 3, "listeners": 4, "daemons": 5, "processes": 6, "stacks": 7, "descriptors": 8, "rules": [{"from": {"user": "root", "group": "root"}, "verdict": "deny"}]})");
  CHECK(p.links_max == 3);
  CHECK(p.listeners_max == 4);
  CHECK(p.daemons_max == 5);
  CHECK(p.processes_max == 6);
  CHECK(p.stacks_max == 7);
  CHECK(p.descriptors_max == 8);
  CHECK_FALSE(p.Allows(Of(0), Of(1), 80));
  CHECK(p.Allows(Of(1), Of(0), 80));
}

TEST_CASE("the switch for paths through memory") {
  CHECK(Good("{}").same_host == SameHost::kOn);
  CHECK(Good(R"({"same_host": "on"})").same_host == SameHost::kOn);
  CHECK(Good(R"({"same_host": "unfiltered"})").same_host == SameHost::kUnfiltered);
  CHECK(Good(R"({"same_host": "unfiltered"})").Allows(Of(1), Of(2), 80));
  const Policy off = Good(R"({"same_host": "off", "rules": [{"verdict": "allow"}]})");
  CHECK(off.same_host == SameHost::kOff);
  CHECK_FALSE(off.Allows(Of(1), Of(2), 80));
  CHECK(Has(Bad(R"({"same_host": true})"), "same_host is not a string"));
  CHECK(Has(Bad(R"({"same_host": "yes"})"), "same_host is not on, unfiltered or off"));
}

TEST_CASE("a bad policy names what is wrong") {
  CHECK(Has(Bad("{"), "parse error"));
  CHECK(Has(Bad("[]"), "not an object"));
  CHECK(Has(Bad(R"({"rulez": []})"), "rulez"));
  CHECK(Has(Bad(R"({"default": "perhaps"})"), "default"));
  CHECK(Has(Bad(R"({"rules": {}})"), "not an array"));
  CHECK(Has(Bad(R"({"rules": [{"ports": "80"}]})"), "no verdict"));
  CHECK(Has(Bad(R"({"rules": [{"ports": "0", "verdict": "deny"}]})"), "no ports"));
  CHECK(Has(Bad(R"({"rules": [{"ports": 80, "verdict": "deny"}]})"), "not a string"));
  CHECK(Has(Bad(R"({"rules": [{"from": {"usr": 1}, "verdict": "deny"}]})"), "usr"));
  CHECK(Has(Bad(R"({"rules": [{"from": {"user": -1}, "verdict": "deny"}]})"), "user"));
  CHECK(Has(Bad(R"({"rules": [{"from": {"group": "no such group"}, "verdict": "deny"}]})"),
            "no such group"));
  CHECK(Has(Bad(R"({"links": 4294967296})"), "links"));
}

TEST_CASE("whose programs may have an interface's packets") {
  CHECK(Good("{}").AllowsVi(Of(1), "eth0"));
  CHECK_FALSE(Good(R"({"vis": []})").AllowsVi(Of(0), "eth0"));
  const Policy p = Good(R"({"filters": 7, "vi_asks": 8, "vis": [
      {"interface": "eth0", "user": 7, "verdict": "deny"},
      {"interface": "eth0", "cgroup": "/web/", "verdict": "allow"},
      {"user": 9, "verdict": "allow"}]})");
  CHECK(p.filters_max == 7);
  CHECK(p.vi_asks_max == 8);
  CHECK_FALSE(p.AllowsVi(Of(7, "/web/"), "eth0"));
  CHECK(p.AllowsVi(Of(8, "/web/"), "eth0"));
  CHECK_FALSE(p.AllowsVi(Of(8, "/web/"), "eth1"));
  CHECK_FALSE(p.AllowsVi(Of(8), "eth0"));
  CHECK(p.AllowsVi(Of(9), "eth1"));
  CHECK(Has(Bad(R"({"vis": {}})"), "not an array"));
  CHECK(Has(Bad(R"({"vis": [{"interface": "eth0"}]})"), "no verdict"));
  CHECK(Has(Bad(R"({"vis": [{"interface": 0, "verdict": "deny"}]})"), "not a string"));
  CHECK(Has(Bad(R"({"vis": [{"device": "eth0", "verdict": "deny"}]})"), "device"));
}

TEST_CASE("so many a second, and as many at once") {
  RateLimit limit;
  constexpr uint64_t kSec = 1'000'000'000, kStart = 5 * kSec;
  for (int i = 0; i < 10; i++) CHECK(limit.Take(kStart, 10, 1));
  CHECK_FALSE(limit.Take(kStart, 10, 1));
  CHECK(limit.Take(kStart + kSec / 10, 10, 1));
  CHECK_FALSE(limit.Take(kStart + kSec / 10, 10, 1));
  CHECK(limit.Take(kStart + 100 * kSec, 10, 8));  // no more than a second's worth is saved up
  CHECK_FALSE(limit.Take(kStart + 100 * kSec, 10, 8));
  CHECK(limit.Take(kStart + 102 * kSec, 10,
                   100));  // dearer than a second's worth: that one takes it all
  CHECK_FALSE(limit.Take(kStart + 102 * kSec, 10, 1));
  CHECK_FALSE(limit.Take(kStart + 103 * kSec, 0, 1));
}

TEST_CASE("what a host is called, and where it may be reached") {
  const Policy none = Good("{}");
  CHECK(none.ueids == std::vector<std::string>{"POSTERN"});
  CHECK(none.addresses.empty());
  const Policy p = Good(
      R"({"ueids": ["A.B-1", "X"], "buffers": 7, "addresses": ["10.96.0.0/12", "fd00::/8", "10.0.0.1", "::1"]})");
  CHECK(p.ueids.size() == 2);
  CHECK(p.buffers_max == 7);
  REQUIRE(p.addresses.size() == 4);
  CHECK(p.addresses[0].port == 96 + 12);
  CHECK(p.addresses[0].ip[12] == 10);
  CHECK(p.addresses[0].ip[11] == 0xff);
  CHECK(p.addresses[1].port == 8);
  CHECK(p.addresses[1].ip[0] == 0xfd);
  CHECK(p.addresses[2].port == 128);
  CHECK(p.addresses[3].port == 128);
  for (const char* bad :
       {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "::/129", "10.0.0", "", "10.0.0.1/8/9"})
    CHECK(Has(Bad((R"({"addresses": [")" + std::string(bad) + R"("]})").c_str()), "addresses"));
  CHECK(Has(Bad(R"({"ueids": []})"), "ueids"));
  CHECK(Has(Bad(R"({"ueids": ["lower case"]})"), "ueids"));
  CHECK(Has(Bad(R"({"ueids": ["A", "B", "C", "D", "E"]})"), "ueids"));
}
