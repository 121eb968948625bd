// page.cc - see page.h.
// SPDX-License-Identifier: Apache-2.0
#include "page.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "../line/columns.h"

namespace postern::ctl_command {
namespace {

std::string Clock() {
  const time_t now = time(nullptr);
  tm local{};
  char text[16] = "";
  if (localtime_r(&now, &local) != nullptr) strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

std::vector<std::string> LinesOf(const std::vector<Row>& rows) {
  std::ostringstream out;
  ShowTable(out, rows);
  std::istringstream in(out.str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  if (!lines.empty()) lines.front().insert(0, 1, kHeading);
  return lines;
}

std::string NumberOf(size_t count, const char* noun, const char* plural = "s") {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : plural);
}

std::string Totals(const Look& now, const std::vector<StackRates>& stacks) {
  StackRates all;
  uint32_t processes = 0, sockets = 0;
  uint64_t memory = 0;
  for (const StackRates& r : stacks) {
    all.received += r.received;
    all.sent += r.sent;
    all.connections += r.connections;
    all.sleeps += r.sleeps;
    all.cpu += r.cpu;
    processes += r.now->processes;
    sockets += r.now->sockets;
    memory += r.now->memory_bytes;
  }
  char cpu[16];
  snprintf(cpu, sizeof cpu, "%.0f", all.cpu);
  std::string line = Clock() + "  " + NumberOf(stacks.size(), "stack") + ", " +
                     NumberOf(processes, "process", "es") + ", " + NumberOf(sockets, "socket") +
                     ", " + Short(static_cast<double>(memory)) + "B; received " +
                     Short(all.received) + "B/s, sent " + Short(all.sent) + "B/s, " +
                     Short(all.connections) + " connections/s, " + Short(all.sleeps) +
                     " sleeps/s, " + cpu + " % CPU";
  if (now.silent != 0) line += "; without an answer: " + NumberOf(now.silent, "posternd");
  return line;
}

std::string ProcessesOf(const StackLook& s) {
  const std::string name = s.comm.empty() ? "-" : Plain(s.comm);
  return s.processes > 1 ? name + " +" + std::to_string(s.processes - 1) : name;
}

}  // namespace

std::string Short(double value) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 999.5 && unit < 5; ++unit) value /= 1000;
  char text[32];
  snprintf(text, sizeof text, unit != 0 && value < 9.95 ? "%.1f%s" : "%.0f%s", value, kUnits[unit]);
  return text;
}

std::vector<std::string> PageLines(const Look& before, const Look& now, Order order, size_t lines) {
  const auto stacks = RatesOfStacks(before, now, order);
  std::vector<std::string> page = {Totals(now, stacks), ""};
  std::vector<Row> rows = {{"Stack", "User", "Program", "Sockets", "Recv-B/s", "Sent-B/s", "Conn/s",
                            "Sleeps/s", "Wakes/s", "Spins/s", "Kernel/s", "CPU-%", "Memory"}};
  for (const StackRates& r : stacks)
    rows.push_back({r.id.substr(0, 8), Plain(r.now->user), ProcessesOf(*r.now),
                    std::to_string(r.now->sockets), Short(r.received), Short(r.sent),
                    Short(r.connections), Short(r.sleeps), Short(r.wakes), Short(r.spins),
                    Short(r.fallbacks), Short(r.cpu),
                    Short(static_cast<double>(r.now->memory_bytes))});
  // Half of the screen is for the sockets, if there are that many stacks.
  const size_t half = std::max<size_t>(lines / 2, 4);
  if (rows.size() > half) rows.resize(half);
  for (std::string& line : LinesOf(rows)) page.push_back(std::move(line));
  page.emplace_back();
  if (!now.has_sockets || !before.has_sockets) {
    page.emplace_back("There are too many sockets to look at each: posternctl ss lists them.");
    return page;
  }
  rows = {{"Path", "Local", "Peer", "Process", "Recv-B/s", "Sent-B/s"}};
  for (const SocketRates& r : RatesOfSockets(before, now)) {
    if (page.size() + rows.size() >= lines) break;
    rows.push_back({Plain(r.now->path), Plain(r.now->local), Plain(r.now->peer),
                    Plain(r.now->process), Short(r.received), Short(r.sent)});
  }
  for (std::string& line : LinesOf(rows)) page.push_back(std::move(line));
  return page;
}

Json PageJson(const Look& before, const Look& now, Order order) {
  Json stacks = Json::array(), sockets = Json::array();
  for (const StackRates& r : RatesOfStacks(before, now, order))
    stacks.push_back({{"stack", r.id},
                      {"user", r.now->user},
                      {"comm", r.now->comm},
                      {"processes", r.now->processes},
                      {"sockets", r.now->sockets},
                      {"memory_bytes", r.now->memory_bytes},
                      {"received_bytes_per_sec", r.received},
                      {"sent_bytes_per_sec", r.sent},
                      {"connections_per_sec", r.connections},
                      {"sleeps_per_sec", r.sleeps},
                      {"wakes_per_sec", r.wakes},
                      {"spins_per_sec", r.spins},
                      {"left_to_kernel_per_sec", r.fallbacks},
                      {"cpu_percent", r.cpu}});
  for (const SocketRates& r : RatesOfSockets(before, now))
    sockets.push_back({{"path", r.now->path},
                       {"local", r.now->local},
                       {"peer", r.now->peer},
                       {"process", r.now->process},
                       {"received_bytes_per_sec", r.received},
                       {"sent_bytes_per_sec", r.sent}});
  return {{"seconds", now.at_sec - before.at_sec},
          {"silent_posternds", now.silent},
          {"stacks", std::move(stacks)},
          {"sockets", std::move(sockets)}};
}

}  // namespace postern::ctl_command
