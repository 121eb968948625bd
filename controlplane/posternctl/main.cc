// main.cc - posternctl: what is accelerated, and if not, why; and the self-test of falling back.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../command_line/command_line.h"
#include "doctor/explain.h"
#include "doctor/host_doctor.h"
#include "host/daemons.h"
#include "host/process_look.h"
#include "line/ask.h"
#include "line/columns.h"
#include "metrics/metrics.h"
#include "route_command.h"
#include "selftest/selftest.h"
#include "show.h"
#include "ss/ss_command.h"
#include "top/top_command.h"

#ifndef POSTERN_VERSION
#define POSTERN_VERSION "unknown"
#endif

namespace postern::ctl_command {
namespace {

struct Arguments {
  std::string runtime_dir;
  uint32_t pid = 0, watch_sec = 0;
  bool json = false;
  SsRequest ss;
  TopRequest top;
  selftest::Request selftest;
  uint32_t port = 0;
  std::vector<std::string> words;
};

constexpr int kExitFailed = 1, kExitUsage = 2;
constexpr int kExitBad = 3;  // docs/man/posternctl.1

// Other users may have one: that is not denied here.
void SayNotRunning(const std::string& runtime_dir) {
  const auto others = FindDaemons(runtime_dir);
  std::cout << "posternd is not running in "
            << (runtime_dir.empty() ? "the runtime directory, which is another user's"
                                    : runtime_dir)
            << ". `postern COMMAND` starts it.\n";
  for (const Daemon& daemon : others)
    std::cout << "That of user " << UserName(daemon.uid) << " runs: --runtime-dir "
              << Plain(daemon.runtime_dir) << '\n';
}

void Print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

int StatusOnce(const Arguments& arguments) {
  Json status = Ask(RuntimeDir(arguments.runtime_dir), Report::kStatus);
  if (status.is_null() && !arguments.json) {
    SayNotRunning(RuntimeDir(arguments.runtime_dir));
    return 0;
  }
  const bool running = !status.is_null();
  if (!running) {
    const Json none = Json::array();
    status = {{"running", false},
              {"stacks", none},
              {"link_groups", none},
              {"listeners", none},
              {"addresses", none}};
  }
  if (arguments.json) {
    Print(status);
  } else {
    ShowStatus(std::cout, status);
  }
  return 0;
}

// Until a signal ends it, or its output.
int Status(const Arguments& arguments) {
  if (arguments.watch_sec == 0) return StatusOnce(arguments);
  const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  for (;;) {
    if (is_terminal) std::cout << "\033[H\033[2J";
    const int code = StatusOnce(arguments);
    if (!std::cout.flush()) return code;
    std::this_thread::sleep_for(std::chrono::seconds(arguments.watch_sec));
    if (!is_terminal) std::cout << '\n';
  }
}

// There may be hundreds of thousands: where none is left out, their text is passed on as it is.
int Sockets(const Arguments& arguments) {
  const std::string dir = RuntimeDir(arguments.runtime_dir);
  const SsRequest& ss = arguments.ss;
  const bool is_plain = ss.filter.empty() && !ss.all && ss.user.empty();
  if (arguments.json && is_plain) {
    const bool details = ss.info || ss.memory || ss.extended;
    const std::string text = AskText(dir, Report::kSockets, ss.pid, details);
    std::cout << (text.empty() ? R"({"running":false,"sockets":[]})" : text) << '\n';
    return 0;
  }
  if (!ShowSs(dir, ss) && !ss.json) SayNotRunning(dir);
  return 0;
}

int Top(const Arguments& arguments) {
  const std::string dir = RuntimeDir(arguments.runtime_dir);
  if (ShowTop(dir, arguments.top)) return 0;
  if (!arguments.top.json) SayNotRunning(dir);
  return kExitBad;
}

int Explain(const Arguments& arguments) {
  const Json report = ExplainProcess(RuntimeDir(arguments.runtime_dir), arguments.pid);
  if (arguments.json) {
    Print(report);
  } else {
    ShowExplanation(std::cout, report);
  }
  return report.at("known").get<bool>() ? 0 : kExitFailed;
}

int Doctor(const Arguments& arguments) {
  const Json report = ExamineHost(RuntimeDir(arguments.runtime_dir));
  if (arguments.json) {
    Print(report);
  } else {
    ShowFindings(std::cout, report);
  }
  return HasBad(report) ? kExitBad : 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CommandLine line("posternctl - shows what Postern accelerates, and why not");
  line.Version("posternctl " POSTERN_VERSION);
  line.OptionsAnywhere();
  line.Option("--runtime-dir", arguments.runtime_dir,
              "posternd's directory, if it is not the usual one");
  CommandLine status = line.Command("status", "Stacks, link groups and listeners");
  CommandLine sockets = line.Command("ss", "Sockets and the path that each one takes");
  CommandLine top = line.Command("top", "Rates of stacks and sockets, on a screen that is renewed");
  CommandLine explain = line.Command("explain", "Why a process's sockets are accelerated or not");
  CommandLine metrics = line.Command("metrics", "Counters, in Prometheus' text format");
  CommandLine doctor = line.Command("doctor", "What this host has of what Postern needs");
  CommandLine test = line.Command(
      "selftest", "Forces each cause for doing without shared memory; most of it needs root");
  CommandLine route = line.Command("route", "The routes as posternd has them");
  CommandLine get = route.Command("get", "The way to an address, as `ip route get`");
  for (CommandLine* command : {&status, &sockets, &explain, &doctor, &test, &get})
    command->Flag("--json", arguments.json, "For programs");
  status.Option("--watch", arguments.watch_sec, "Again each so many seconds").Range(1, 86400);
  sockets.Option("-p,--pid", arguments.ss.pid, "Only this process's").Range(1, INT32_MAX);
  sockets.Flag("-a,--all", arguments.ss.all, "Of all users' posternds (root)");
  sockets.Option("-u,--user", arguments.ss.user, "Only of this user's posternds (root)");
  sockets.Flag("-i,--info", arguments.ss.info, "Rings, queues; of the kernel's: rtt, cwnd");
  sockets.Flag("-m,--memory", arguments.ss.memory, "Memory of rings, and buffers that were set");
  sockets.Flag("-e,--extended", arguments.ss.extended, "User, inode, endpoint, stack");
  sockets.Flag("-H,--no-header", arguments.ss.no_header, "No line of headings");
  sockets.Option("FILTER", arguments.ss.filter,
                 "As in ss(8): state established '( sport = :80 or dport = :http )'");
  top.Option("-d,--interval", arguments.top.interval_sec, "Seconds between two looks")
      .Range(1, 3600);
  top.Option("-n,--count", arguments.top.count, "Ends after so many").Range(1, INT32_MAX);
  top.Flag("-b,--batch", arguments.top.batch, "Text that follows text, for files and pipes");
  top.Flag("--json", arguments.top.json, "A line of JSON each time");
  top.Flag("-a,--all", arguments.top.all, "Of all users' posternds (root)");
  top.Option("-u,--user", arguments.top.user, "Only of this user's posternds (root)");
  explain.Option("PID", arguments.pid, "The process").Required().Range(1, INT32_MAX);
  test.Flag("--list", arguments.selftest.list, "Only names the causes");
  test.Flag("--verbose", arguments.selftest.verbose, "posternd's log after a failure");
  test.Option("--only", arguments.selftest.only, "Causes whose names begin so");
  get.Option("WORDS", arguments.words,
             "ADDRESS [from ADDRESS] [oif NAME] [mark N] [uid N] [tos N] [proto N] [sport N] "
             "[dport N]")
      .Required();
  // What the self-test runs under `postern`.
  CommandLine echo = line.Command("selftest-echo", "");
  echo.Option("PORT", arguments.port, "").Required();
  CommandLine commands = line.Command("selftest-client", "");
  if (const auto over = line.Parse(argc, argv)) return *over != 0 ? kExitUsage : 0;
  if (echo.IsGiven()) return selftest::ServeEcho(arguments.port);
  if (commands.IsGiven()) return selftest::ServeCommands();
  if (test.IsGiven()) {
    arguments.selftest.json = arguments.json;
    return selftest::Run(arguments.selftest);
  }
  if (get.IsGiven())
    return RouteGet(RuntimeDir(arguments.runtime_dir), arguments.words, arguments.json);
  if (status.IsGiven()) return Status(arguments);
  if (doctor.IsGiven()) return Doctor(arguments);
  if (metrics.IsGiven()) return ShowMetrics(RuntimeDir(arguments.runtime_dir)) ? 0 : kExitBad;
  if (top.IsGiven()) return Top(arguments);
  arguments.ss.json = arguments.json;
  return sockets.IsGiven() ? Sockets(arguments) : Explain(arguments);
}

}  // namespace
}  // namespace postern::ctl_command

int main(int argc, char** argv) {
  try {
    const int code = postern::ctl_command::Main(argc, argv);
    // A full disk, or a reader that has gone: what was asked for has not been told.
    if (!std::cout.flush()) throw std::runtime_error("standard output can't be written");
    return code;
  } catch (const std::exception& error) {
    std::cerr << "posternctl: " << postern::ctl_command::Plain(error.what()) << '\n';
    return postern::ctl_command::kExitFailed;
  }
}
