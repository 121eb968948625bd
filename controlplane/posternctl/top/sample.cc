// sample.cc - see sample.h.
// SPDX-License-Identifier: Apache-2.0
#include "sample.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>

namespace postern::ctl_command {
namespace {

uint64_t Value(const std::map<std::string, uint64_t>& counters, const char* name) {
  const auto it = counters.find(name);
  return it != counters.end() ? it->second : 0;
}

std::string TextOf(const Json& of, const char* key) {
  const auto it = of.find(key);
  return it != of.end() && it->is_string() ? it->get<std::string>() : "";
}

uint64_t CountOf(const Json& of, const char* key) {
  const auto it = of.find(key);
  return it != of.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

// What a program has written there may become less: no rate is below 0.
double PerSecond(uint64_t before, uint64_t now, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

double CpuPercent(const StackLook& before, const StackLook& now, double seconds) {
  static const double kTicks = static_cast<double>(sysconf(_SC_CLK_TCK));
  double ticks = 0;
  for (const auto& [process, used] : now.cpu_ticks) {
    const auto it = before.cpu_ticks.find(process);
    ticks += PerSecond(it != before.cpu_ticks.end() ? it->second : 0, used, seconds);
  }
  return 100 * ticks / kTicks;
}

double Key(const StackRates& rates, Order order) {
  switch (order) {
    case Order::kConnections:
      return rates.connections;
    case Order::kCpu:
      return rates.cpu;
    case Order::kSleeps:
      return rates.sleeps;
    case Order::kSockets:
      return rates.now->sockets;
    case Order::kBytes:
      break;
  }
  return rates.received + rates.sent;
}

}  // namespace

void AddStatus(Look& look, const Json& status, const std::string& user, CpuOf cpu) {
  for (const Json& stack : status.at("stacks")) {
    StackLook s;
    s.user = user;
    for (const Json& process : stack.at("processes")) {
      if (s.processes++ == 0) s.comm = TextOf(process, "comm");
      const int64_t pid = process.value("pid", int64_t{0});
      const auto [start, ticks] = cpu(pid);
      if (start != 0) s.cpu_ticks[{pid, start}] = ticks;
    }
    s.sockets = static_cast<uint32_t>(CountOf(stack, "endpoints"));
    s.link_groups = static_cast<uint32_t>(CountOf(stack, "link_groups"));
    s.memory_bytes = CountOf(stack, "memory_bytes");
    for (const char* part : {"counters", "live"}) {
      const auto it = stack.find(part);
      if (it == stack.end() || !it->is_object()) continue;
      for (const auto& [name, value] : it->items())
        if (value.is_number_unsigned()) s.counters[name] += value.get<uint64_t>();
    }
    if (const auto it = stack.find("fallbacks"); it != stack.end() && it->is_object())
      for (const auto& [reason, count] : it->items())
        if (count.is_number_unsigned()) s.counters["fallbacks"] += count.get<uint64_t>();
    look.stacks[TextOf(stack, "id")] = std::move(s);
  }
}

void AddSockets(Look& look, const Json& report) {
  for (const Json& s : report.at("sockets")) {
    if (!s.contains("rx_bytes") || !s.at("rx_bytes").is_number_unsigned()) continue;
    SocketLook one;
    one.path = TextOf(s, "path");
    one.local = TextOf(s, "local");
    one.peer = TextOf(s, "peer");
    const std::string pid = std::to_string(s.value("pid", int64_t{0}));
    one.process = pid + "/" + TextOf(s, "comm");
    one.received = CountOf(s, "rx_bytes");
    one.sent = CountOf(s, "tx_bytes");
    const std::string key =
        pid + " " + std::to_string(s.value("fd", int64_t{-1})) + " " + one.local + " " + one.peer;
    look.sockets[key] = std::move(one);
  }
}

std::vector<StackRates> RatesOfStacks(const Look& before, const Look& now, Order order) {
  const double seconds = now.at_sec - before.at_sec;
  static const StackLook kNone;
  std::vector<StackRates> all;
  for (const auto& entry : now.stacks) {
    const std::string& id = entry.first;
    const StackLook& s = entry.second;
    const auto it = before.stacks.find(id);
    const StackLook& was = it != before.stacks.end() ? it->second : kNone;
    const auto rate = [&](const char* name) {
      return PerSecond(Value(was.counters, name), Value(s.counters, name), seconds);
    };
    StackRates r;
    r.id = id;
    r.now = &s;
    r.received = rate("bytes_received");
    r.sent = rate("bytes_sent");
    r.connections = rate("connects") + rate("accepts");
    r.sleeps = rate("sleeps");
    r.wakes = rate("futex_wakes") + rate("doorbells");
    r.spins = rate("spins");
    r.fallbacks = rate("fallbacks");
    r.cpu = CpuPercent(was, s, seconds);
    all.push_back(std::move(r));
  }
  std::stable_sort(all.begin(), all.end(), [order](const StackRates& a, const StackRates& b) {
    return Key(a, order) > Key(b, order);
  });
  return all;
}

std::vector<SocketRates> RatesOfSockets(const Look& before, const Look& now) {
  const double seconds = now.at_sec - before.at_sec;
  std::vector<SocketRates> all;
  for (const auto& [key, s] : now.sockets) {
    const auto it = before.sockets.find(key);
    const uint64_t received = it != before.sockets.end() ? it->second.received : 0;
    const uint64_t sent = it != before.sockets.end() ? it->second.sent : 0;
    const SocketRates r = {&s, PerSecond(received, s.received, seconds),
                           PerSecond(sent, s.sent, seconds)};
    if (r.received + r.sent > 0) all.push_back(r);
  }
  std::stable_sort(all.begin(), all.end(), [](const SocketRates& a, const SocketRates& b) {
    return a.received + a.sent > b.received + b.sent;
  });
  return all;
}

}  // namespace postern::ctl_command
