// show.cc - tables and sentences.
// SPDX-License-Identifier: Apache-2.0
#include "show.h"

#include <cstdio>
#include <string>
#include <vector>

#include "line/columns.h"

namespace postern::ctl_command {
namespace {

std::string Size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string String(const Json& socket, const char* key) {
  return Plain(socket.at(key).get<std::string>());
}

// What a socket's path means, for a user that has not read the manual.
std::string PathSentence(const Json& socket) {
  const std::string path = String(socket, "path");
  const std::string local = String(socket, "local"), peer = String(socket, "peer");
  const bool fine = String(socket, "reason").empty();
  if (path == "same-host")
    return local + " <-> " + peer + " is accelerated: shared memory with the peer's process.";
  if (path == "smc-d")
    return local + " <-> " + peer +
           " is accelerated: shared memory with a program in another container, or of another "
           "user.";
  if (path == "intra-stack")
    return local + " <-> " + peer + " is accelerated: both ends are in this program.";
  if (path == "vi")
    return local + " <-> " + peer +
           " is accelerated: its packets pass the kernel's TCP by (a VI), and TCP is ours.";
  if (path == "listen")
    return "listens on " + local +
           (fine ? " and is found by accelerated clients" : " for the kernel's clients only") +
           (socket.value("steered", false) ? ", and by those on the wire." : ".");
  if (path == "new") return "is neither connected nor listening.";
  return local + " <-> " + peer + " is not accelerated: the kernel's TCP serves it.";
}

void ShowCounters(std::ostream& out, const Json& stack) {
  std::string line;
  for (const auto& [name, value] : stack.at("counters").items()) {
    if (value.get<uint64_t>() != 0)
      line += " " + name + "=" + std::to_string(value.get<uint64_t>());
  }
  if (!line.empty()) out << "  counters:" << line << '\n';
  line.clear();
  for (const auto& [name, value] : stack.at("fallbacks").items()) {
    line += " " + name + "=" + std::to_string(value.get<uint64_t>());
  }
  if (!line.empty()) out << "  left to the kernel:" << line << '\n';
  for (const Json& check : stack.value("checks", Json::array()))
    out << "  a check has failed, an error of postern's: " << String(check, "place") << ", "
        << check.at("count") << " times\n";
}

void ShowLevel(std::ostream& out, const Json& stack) {
  if (!stack.contains("level")) return;  // an older posternd
  out << "  level " << stack.at("level");
  if (stack.contains("no_module")) out << ", no kernel module: " << String(stack, "no_module");
  out << '\n';
}

}  // namespace

void ShowStatus(std::ostream& out, const Json& status) {
  out << "posternd " << String(status, "version") << ", pid " << status.at("pid") << ", up "
      << status.at("uptime_sec") << " s\n";
  if (const uint64_t failed = status.value("reapers_failed", uint64_t{0}); failed != 0)
    out << failed
        << " reapers have failed: families of programs that were cut off (posternd.log)\n";
  out << (status.value("broker", false) ? "joined to the host's broker\n" : "no broker\n");
  if (!status.value("gives_paths", true)) out << "the host's policy gives no path through memory\n";
  const Json vi_errors = status.value("vi_errors", Json::object());
  for (const auto& [name, error] : vi_errors.items())
    out << "no VI on " << Plain(name) << ": " << Plain(error.get<std::string>()) << '\n';
  for (const Json& stack : status.at("stacks")) {
    out << "\nstack " << String(stack, "id") << ": " << stack.at("endpoints") << " sockets, "
        << stack.at("link_groups") << " link groups, "
        << Size(stack.at("memory_bytes").get<uint64_t>()) << '\n';
    ShowLevel(out, stack);
    for (const Json& process : stack.at("processes")) {
      out << "  process " << process.at("pid") << " " << String(process, "comm") << '\n';
    }
    ShowCounters(out, stack);
  }
  for (const Json& link : status.at("link_groups")) {
    out << "\nlink group " << String(link, "id") << ": " << link.at("connections")
        << " connections, " << Size(link.at("memory_bytes").get<uint64_t>())
        << (link.at("peer_dead").get<bool>() ? ", peer has ended" : "") << "\n  "
        << String(link, "client") << " -> " << String(link, "server") << '\n';
  }
  if (!status.at("listeners").empty()) out << '\n';
  for (const Json& listener : status.at("listeners")) {
    out << "listener " << String(listener, "local") << " of stack " << String(listener, "stack")
        << '\n';
  }
  if (status.at("stacks").empty()) out << "No program is attached.\n";
}

namespace {

void ShowSocket(std::ostream& out, const Json& s) {
  out << "\nfd " << s.at("fd") << ": " << PathSentence(s) << '\n';
  const std::string reason = String(s, "reason");
  if (!reason.empty()) out << "  Reason " << reason << ": " << String(s, "reason_text") << '\n';
  if (s.contains("other_end")) out << "  " << String(s, "other_end") << '\n';
}

void ShowList(std::ostream& out, const Json& sentences, const char* before) {
  for (const Json& sentence : sentences)
    out << before << Plain(sentence.get<std::string>()) << '\n';
}

constexpr size_t kSocketsShown = 24;  // a screen

}  // namespace

void ShowFindings(std::ostream& out, const Json& report) {
  std::vector<Row> rows;
  for (const Json& f : report.at("findings")) {
    rows.push_back({String(f, "state"), String(f, "what"), String(f, "says")});
    if (!String(f, "advice").empty()) rows.push_back({"", "", "-> " + String(f, "advice")});
  }
  ShowTable(out, rows);
}

void ShowExplanation(std::ostream& out, const Json& report) {
  out << "Process " << report.at("pid");
  if (!String(report, "comm").empty()) out << " " << String(report, "comm");
  if (!String(report, "user").empty()) out << ", of user " << String(report, "user");
  out << ": " << String(report, "verdict");
  if (!String(report, "why").empty()) out << " (" << String(report, "why") << ")";
  out << "\n";
  ShowList(out, report.at("says"), "  ");
  ShowList(out, report.at("advice"), "  What to do: ");
  if (!report.at("known").get<bool>()) out << "  It is not known to any posternd that was asked.\n";
  ShowList(out, report.at("unasked"), "  Could not be asked: ");
  const Json& sockets = report.at("sockets");
  for (size_t i = 0; i < sockets.size() && i < kSocketsShown; ++i) ShowSocket(out, sockets[i]);
  if (sockets.size() > kSocketsShown)
    out << "\nand " << sockets.size() - kSocketsShown << " more: posternctl ss -p "
        << report.at("pid") << '\n';
  if (report.contains("others"))
    out << "\n"
        << report.at("others").at("count")
        << " more of its sockets: " << String(report.at("others"), "reason") << ": "
        << String(report.at("others"), "reason_text") << '\n';
  if (!report.at("fallbacks").empty()) out << "\nSo far its stack left to the kernel:\n";
  for (const Json& f : report.at("fallbacks")) {
    out << "  " << f.at("count") << " x " << String(f, "reason") << ": " << String(f, "text")
        << '\n';
  }
}

}  // namespace postern::ctl_command
