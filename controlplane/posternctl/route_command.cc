// route_command.cc - see route_command.h.
// SPDX-License-Identifier: Apache-2.0
#include "route_command.h"

#include <net/if.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <utility>

#include "base/ip_address.h"
#include "line/ask.h"
#include "stack/route/route.h"
#include "stack/route/route_key.h"
#include "state/area.h"

namespace postern::ctl_command {
namespace {

struct Unmap {
  void operator()(const pstn_routes* tables) const { UnmapRoutes(tables); }
};

void ParseIp(const std::string& text, uint8_t out[16]) {
  IpAddress ip{};
  if (!IpFromText(text.c_str(), ip)) throw AskError(text + " is no address");
  memcpy(out, ip.bytes, sizeof ip.bytes);
}

uint32_t ParseNumber(const std::string& text) {
  const bool hex = text.starts_with("0x");
  uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + (hex ? 2 : 0), end, value, hex ? 16 : 10);
  if (error != std::errc() || at != end) throw AskError(text + " is no number");
  return value;
}

void TakeWord(const std::string& word, const std::string& value, RouteQuery& q) {
  const auto small = [&](uint32_t most) {
    const uint32_t number = ParseNumber(value);
    if (number > most) throw AskError(value + " is too large");
    return number;
  };
  if (word == "from") {
    ParseIp(value, q.src);
  } else if (word == "oif" || word == "dev") {
    q.oif = if_nametoindex(value.c_str());
    if (q.oif == 0) throw AskError("no interface " + value);
  } else if (word == "mark") {
    q.mark = ParseNumber(value);
    q.known |= kRouteKnowsMark;
  } else if (word == "uid") {
    q.uid = ParseNumber(value);
    q.known |= kRouteKnowsUid;
  } else if (word == "tos") {
    q.tos = static_cast<uint8_t>(small(255));
  } else if (word == "proto") {
    q.proto = static_cast<uint8_t>(small(255));
    q.known |= kRouteKnowsProto;
  } else if (word == "sport") {
    q.sport = static_cast<uint16_t>(small(65535));
    q.known |= kRouteKnowsSport;
  } else if (word == "dport") {
    q.dport = static_cast<uint16_t>(small(65535));
    q.known |= kRouteKnowsDport;
  } else {
    throw AskError("what is " + word + "?");
  }
}

RouteQuery ParseQuery(const std::vector<std::string>& words) {
  RouteQuery q;
  if (words.empty()) throw AskError("the address is missing");
  ParseIp(words[0], q.dst);
  for (size_t i = 1; i < words.size(); i += 2) {
    if (i + 1 == words.size()) throw AskError(words[i] + " what?");
    TakeWord(words[i], words[i + 1], q);
  }
  return q;
}

std::string TextOf(const uint8_t ip[16]) {
  char text[kIpTextBytes];
  return IpText(IpAt(ip), text);
}

std::string LinkName(uint32_t ifindex) {
  char name[IF_NAMESIZE];
  return if_indextoname(ifindex, name) != nullptr ? name : "if" + std::to_string(ifindex);
}

const char* VerdictName(RouteVerdict verdict) {
  switch (verdict) {
    case RouteVerdict::kUnicast:
      return "unicast";
    case RouteVerdict::kLocal:
      return "local";
    case RouteVerdict::kBroadcast:
      return "broadcast";
    case RouteVerdict::kMulticast:
      return "multicast";
    case RouteVerdict::kRefused:
      return "refused";
    case RouteVerdict::kUndecided:
      break;
  }
  return "undecided";
}

const char* StateName(NeighbourState state) {
  switch (state) {
    case NeighbourState::kAsking:
      return "asking";
    case NeighbourState::kGood:
      return "good";
    case NeighbourState::kStale:
      return "stale";
    case NeighbourState::kFailed:
      return "failed";
    case NeighbourState::kNotNeeded:
      return "not-needed";
    case NeighbourState::kUnknown:
      break;
  }
  return "unknown";
}

std::string MacText(const uint8_t mac[6]) {
  char text[18];
  snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
           mac[4], mac[5]);
  return text;
}

Json ToJson(const RouteQuery& q, const RouteAnswer& a) {
  Json out = {{"dst", TextOf(q.dst)},
              {"verdict", VerdictName(a.verdict)},
              {"routes", VerdictName(a.routes)},
              {"reason", RouteReasonName(a.reason)},
              {"version", a.version}};
  if (a.routes == RouteVerdict::kRefused) out["error"] = strerrorname_np(a.error);
  if (a.routes == RouteVerdict::kRefused || a.routes == RouteVerdict::kUndecided) return out;
  out["dev"] = LinkName(a.ifindex);
  if (a.has_gateway != 0) out["via"] = TextOf(a.next_hop);
  out["src"] = TextOf(a.source);
  out["table"] = a.table;
  out["metric"] = a.metric;
  out["mtu"] = a.mtu;
  out["hoplimit"] = a.hop_limit;
  out["neighbour"] = StateName(a.neighbour.state);
  if (a.neighbour.state == NeighbourState::kGood || a.neighbour.state == NeighbourState::kStale)
    out["lladdr"] = MacText(a.neighbour.mac);
  if (a.link.reason != RouteReason::kNone) return out;
  out["vi"] = LinkName(a.link.vi_ifindex);
  out["vlan"] = Json::array();
  for (int i = 0; i < a.link.tags; i++) out["vlan"].push_back(a.link.vid[i]);
  return out;
}

void PrintMetrics(const RouteAnswer& a) {
  const RouteMetrics& m = a.metrics;
  std::cout << "    mtu " << a.mtu << (a.mtu_locked != 0 ? " lock" : "") << " hoplimit "
            << int{a.hop_limit};
  const std::pair<const char*, uint32_t> values[] = {
      {"advmss", m.advmss},     {"window", m.window},      {"initcwnd", m.initcwnd},
      {"initrwnd", m.initrwnd}, {"rto_min", m.rto_min_ms}, {"quickack", m.quickack},
  };
  for (const auto& [name, value] : values) {
    if (value != 0) std::cout << " " << name << " " << value;
  }
  if ((m.features & kRouteFeatureEcn) != 0) std::cout << " features ecn";
  if (m.congestion[0] != 0) std::cout << " congctl " << m.congestion;
  std::cout << "\n    neighbour " << StateName(a.neighbour.state);
  if (a.neighbour.state == NeighbourState::kGood || a.neighbour.state == NeighbourState::kStale)
    std::cout << " " << MacText(a.neighbour.mac);
  if (a.link.reason == RouteReason::kNone) {
    std::cout << ", VI on " << LinkName(a.link.vi_ifindex);
    for (int i = 0; i < a.link.tags; i++) std::cout << " vlan " << a.link.vid[i];
  }
  std::cout << "\n";
}

void PrintText(const RouteQuery& q, const RouteAnswer& a) {
  if (a.routes == RouteVerdict::kRefused) {
    std::cout << TextOf(q.dst) << ": " << strerror(a.error) << "\n";
    return;
  }
  if (a.routes != RouteVerdict::kUndecided) {
    if (a.routes != RouteVerdict::kUnicast) std::cout << VerdictName(a.routes) << " ";
    std::cout << TextOf(q.dst);
    if (a.has_gateway != 0) std::cout << " via " << TextOf(a.next_hop);
    std::cout << " dev " << LinkName(a.ifindex) << " src " << TextOf(a.source) << " table "
              << a.table << "\n";
    if (a.routes != RouteVerdict::kLocal) PrintMetrics(a);
  }
  if (a.verdict == RouteVerdict::kUndecided)
    std::cout << "undecided (" << RouteReasonName(a.reason) << "): " << RouteReasonText(a.reason)
              << " The kernel serves such sockets.\n";
}

}  // namespace

int RouteGet(const std::string& runtime_dir, const std::vector<std::string>& words, bool json) {
  const RouteQuery q = ParseQuery(words);
  ctl::Msg request;
  request.type = ctl::Type::kRoutes;
  const int fd = AskFd(runtime_dir, request);
  if (fd < 0) throw AskError("posternd is not running");
  const std::unique_ptr<const pstn_routes, Unmap> tables(MapRoutes(fd));
  close(fd);
  if (tables == nullptr) throw AskError("posternd's tables are of another version");
  const RouteAnswer a = RouteLookup(*tables, q);
  if (json) {
    std::cout << ToJson(q, a).dump(2) << "\n";
    return 0;
  }
  PrintText(q, a);
  return a.verdict == RouteVerdict::kRefused || a.verdict == RouteVerdict::kUndecided ? 2 : 0;
}

}  // namespace postern::ctl_command
