// main.cc - posternctl: what is accelerated, and if not, why; and the self-test of falling back.
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <initializer_list>
#include <iostream>
#include <string>
#include <vector>

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
  unsigned port = 0;
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
  CLI::App app("posternctl - shows what Postern accelerates, and why not");
  app.set_version_flag("--version", "posternctl " POSTERN_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--runtime-dir", arguments.runtime_dir,
                 "posternd's directory, if it is not the usual one");
  CLI::App* status = app.add_subcommand("status", "Stacks, link groups and listeners");
  CLI::App* sockets = app.add_subcommand("ss", "Sockets and the path that each one takes");
  CLI::App* explain =
      app.add_subcommand("explain", "Why a process's sockets are accelerated or not");
  for (CLI::App* command : {status, sockets, explain}) {
    command->add_flag("--json", arguments.json, "For programs");
  }
  sockets->add_option("-p,--pid", arguments.pid, "Only this process's");
  explain->add_option("PID", arguments.pid, "The process")->required()->check(CLI::PositiveNumber);
  CLI::App* const test = app.add_subcommand(
      "selftest", "Forces each cause for doing without shared memory; most of it needs root");
  test->add_flag("--json", arguments.json, "For programs");
  test->add_flag("--list", arguments.selftest.list, "Only names the causes");
  test->add_flag("--verbose", arguments.selftest.verbose, "posternd's log after a failure");
  test->add_option("--only", arguments.selftest.only, "Causes whose names begin so");
  CLI::App* const route = app.add_subcommand("route", "The routes as posternd has them");
  CLI::App* const get = route->add_subcommand("get", "The way to an address, as `ip route get`");
  route->require_subcommand(1);
  get->add_option("WORDS", arguments.words,
                  "ADDRESS [from ADDRESS] [oif NAME] [mark N] [uid N] [tos N] [proto N] [sport N] "
                  "[dport N]")
      ->required();
  get->add_flag("--json", arguments.json, "For programs");
  // What the self-test runs under `postern`.
  CLI::App* echo = app.add_subcommand("selftest-echo")->group("");
  echo->add_option("PORT", arguments.port)->required();
  CLI::App* commands = app.add_subcommand("selftest-client")->group("");
  CLI11_PARSE(app, argc, argv);
  if (echo->parsed()) return selftest::ServeEcho(arguments.port);
  if (commands->parsed()) return selftest::ServeCommands();
  if (test->parsed()) {
    arguments.selftest.json = arguments.json;
    return selftest::Run(arguments.selftest);
  }
  if (get->parsed())
    return RouteGet(RuntimeDir(arguments.runtime_dir), arguments.words, arguments.json);
  if (status->parsed()) return Status(arguments);
  return sockets->parsed() ? Sockets(arguments) : Explain(arguments);
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
