// main.cc - posternctl: what is accelerated, and if not, why; and the self-test of falling back.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <initializer_list>
#include <iostream>
#include <string>
#include <vector>

#include "../command_line/command_line.h"
#include "line/ask.h"
#include "route_command.h"
#include "selftest/selftest.h"
#include "show.h"

#ifndef POSTERN_VERSION
#define POSTERN_VERSION "unknown"
#endif

namespace postern::ctl_command {
namespace {

struct Arguments {
  std::string runtime_dir;
  uint32_t pid = 0;
  bool json = false;
  selftest::Request selftest;
  uint32_t port = 0;
  std::vector<std::string> words;
};

const char* const kNotRunning =
    "posternd is not running, so nothing is accelerated. `postern COMMAND` starts it.\n";

void Print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

int Status(const Arguments& arguments) {
  Json status = Ask(RuntimeDir(arguments.runtime_dir), Report::kStatus);
  if (status.is_null() && !arguments.json) {
    std::cout << kNotRunning;
    return 0;
  }
  if (status.is_null()) {
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

// There may be hundreds of thousands: their text is passed on as it is.
int Sockets(const Arguments& arguments) {
  const std::string text =
      AskText(RuntimeDir(arguments.runtime_dir), Report::kSockets, arguments.pid);
  if (arguments.json) {
    std::cout << (text.empty() ? R"({"running":false,"sockets":[]})" : text) << '\n';
  } else if (!text.empty()) {
    ShowSockets(std::cout, Json::parse(text).at("sockets"));
  } else {
    std::cout << kNotRunning;
  }
  return 0;
}

int Explain(const Arguments& arguments) {
  const Json report = Ask(RuntimeDir(arguments.runtime_dir), Report::kExplain, arguments.pid);
  if (report.is_null()) {
    if (arguments.json) {
      Print({{"running", false},
             {"pid", arguments.pid},
             {"known", false},
             {"sockets", Json::array()}});
    } else {
      std::cout << kNotRunning;
    }
    return 0;
  }
  if (arguments.json) {
    Print(report);
  } else {
    ShowExplanation(std::cout, report);
  }
  return report.at("known").get<bool>() ? 0 : 1;
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
  CommandLine explain = line.Command("explain", "Why a process's sockets are accelerated or not");
  CommandLine test = line.Command(
      "selftest", "Forces each cause for doing without shared memory; most of it needs root");
  CommandLine route = line.Command("route", "The routes as posternd has them");
  CommandLine get = route.Command("get", "The way to an address, as `ip route get`");
  for (CommandLine* command : {&status, &sockets, &explain, &test, &get})
    command->Flag("--json", arguments.json, "For programs");
  sockets.Option("-p,--pid", arguments.pid, "Only this process's");
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
  if (const auto over = line.Parse(argc, argv)) return *over;
  if (echo.IsGiven()) return selftest::ServeEcho(arguments.port);
  if (commands.IsGiven()) return selftest::ServeCommands();
  if (test.IsGiven()) {
    arguments.selftest.json = arguments.json;
    return selftest::Run(arguments.selftest);
  }
  if (get.IsGiven())
    return RouteGet(RuntimeDir(arguments.runtime_dir), arguments.words, arguments.json);
  if (status.IsGiven()) return Status(arguments);
  return sockets.IsGiven() ? Sockets(arguments) : Explain(arguments);
}

}  // namespace
}  // namespace postern::ctl_command

int main(int argc, char** argv) {
  try {
    return postern::ctl_command::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "posternctl: " << error.what() << '\n';
    return 1;
  }
}
