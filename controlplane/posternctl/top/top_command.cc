// top_command.cc - see top_command.h.
// SPDX-License-Identifier: Apache-2.0
#include "top_command.h"

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>

#include "../host/daemons.h"
#include "../host/process_look.h"
#include "page.h"
#include "screen.h"

namespace postern::ctl_command {
namespace {

// posternd writes each socket down for a look: of more, only their stacks are shown.
constexpr uint32_t kSocketsMost = 10'000;
constexpr size_t kBatchLines = 60;

// {start, ticks} of /proc/PID/stat: fields 22, 14 and 15. The name before them may have blanks.
std::pair<uint64_t, uint64_t> CpuOfProcess(int64_t pid) {
  const std::string text = ReadWhole("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return {0, 0};
  std::istringstream fields(text.substr(name_end + 1));
  std::string word;
  uint64_t user = 0, system = 0, start = 0;
  for (int i = 3; i < 14; ++i) fields >> word;
  fields >> user >> system;
  for (int i = 16; i < 22; ++i) fields >> word;
  fields >> start;
  return fields ? std::pair{start, user + system} : std::pair<uint64_t, uint64_t>{0, 0};
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Look TakeLook(const std::string& runtime_dir, const TopRequest& request) {
  Look look;
  look.at_sec = Now();
  uint32_t sockets = 0;
  std::vector<Daemon> answered;
  for (const Daemon& daemon : DaemonsOf(runtime_dir, request.all, request.user)) {
    try {
      const Json status = Ask(daemon.runtime_dir, Report::kStatus);
      if (!status.is_object()) continue;
      AddStatus(look, status, UserName(daemon.uid), CpuOfProcess);
      for (const Json& stack : status.at("stacks"))
        sockets += stack.value("endpoints", uint32_t{0});
      answered.push_back(daemon);
    } catch (const AskError&) {
      if (!request.all && request.user.empty()) throw;  // the only one that was asked
      look.silent++;
    }
  }
  look.daemons = static_cast<uint32_t>(answered.size());
  look.has_sockets = sockets <= kSocketsMost;
  for (const Daemon& daemon : answered) {
    if (!look.has_sockets) break;
    try {
      const Json report = Ask(daemon.runtime_dir, Report::kSockets);
      if (report.is_object()) AddSockets(look, report);
    } catch (const AskError&) {
      look.silent++;
    }
  }
  return look;
}

void Print(const Look& before, const Look& now, const TopRequest& request) {
  if (request.json) {
    std::cout
        << PageJson(before, now, Order::kBytes).dump(-1, ' ', false, Json::error_handler_t::replace)
        << '\n';
    return;
  }
  for (const std::string& line : PageLines(before, now, Order::kBytes, kBatchLines))
    std::cout << (!line.empty() && line.front() == kHeading ? line.substr(1) : line) << '\n';
  std::cout << '\n';
}

bool InBatch(const std::string& runtime_dir, const TopRequest& request) {
  Look before = TakeLook(runtime_dir, request);
  if (before.daemons == 0) return false;
  for (uint32_t i = 0; request.count == 0 || i < request.count; ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(request.interval_sec));
    Look now = TakeLook(runtime_dir, request);
    Print(before, now, request);
    if (!std::cout.flush()) return true;
    before = std::move(now);
  }
  return true;
}

std::optional<Order> OrderOf(int key) {
  switch (key) {
    case 'b':
      return Order::kBytes;
    case 'c':
      return Order::kCpu;
    case 'n':
      return Order::kConnections;
    case 's':
      return Order::kSleeps;
    case 'o':
      return Order::kSockets;
    default:
      return std::nullopt;
  }
}

std::string KeysLine(Order order) {
  static constexpr const char* kNames[] = {"bytes", "connections", "CPU", "sleeps", "open sockets"};
  return std::string("by ") + kNames[static_cast<size_t>(order)] +
         "; keys: b bytes, c CPU, n connections, s sleeps, o open sockets, q quit";
}

bool OnScreen(const std::string& runtime_dir, const TopRequest& request) {
  Look before = TakeLook(runtime_dir, request);
  if (before.daemons == 0) return false;
  Screen screen;
  Order order = Order::kBytes;
  Look now = before;
  const auto show = [&] {
    std::vector<std::string> page = PageLines(before, now, order, screen.lines() - 1);
    page.resize(screen.lines() - 1);
    page.push_back(KeysLine(order));
    screen.Show(page);
  };
  show();
  double due = Now() + request.interval_sec;
  for (uint32_t shown = 0;;) {
    const double left = due - Now();
    const int key = screen.Key(left > 0 ? static_cast<int>(left * 1000) + 1 : 0);
    if (key == 'q') return true;
    if (const auto asked = OrderOf(key)) order = *asked;
    if (Now() >= due) {
      Look next = TakeLook(runtime_dir, request);
      before = std::exchange(now, std::move(next));
      due = Now() + request.interval_sec;
      show();
      if (++shown == request.count) return true;
      continue;
    }
    show();
  }
}

}  // namespace

bool ShowTop(const std::string& runtime_dir, const TopRequest& request) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (request.batch || request.json || !is_terminal) return InBatch(runtime_dir, request);
  return OnScreen(runtime_dir, request);
}

}  // namespace postern::ctl_command
