// show.cc - tables and sentences.
// SPDX-License-Identifier: Apache-2.0
#include "show.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace postern::ctl_command {
namespace {

using Row = std::vector<std::string>;

void ShowTable(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
}

std::string Size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

// Programs name themselves. What is no text would be a command to the terminal: control characters,
// and those that UTF-8 has above 0x7f (C1).
std::string String(const Json& socket, const char* key) {
  auto text = socket.at(key).get<std::string>();
  const auto is_c1 = [&](size_t i) {
    return static_cast<unsigned char>(text[i]) == 0xc2 && i + 1 < text.size() &&
           static_cast<unsigned char>(text[i + 1]) < 0xa0;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < ' ' || byte == 0x7f) text[i] = '?';
    if (is_c1(i)) text[i] = text[i + 1] = '?';
  }
  return text;
}

std::string Holder(const Json& socket) {
  return std::to_string(socket.at("pid").get<long>()) + "/" + String(socket, "comm");
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
           " is accelerated: its packets pass the kernel by (AF_XDP), and TCP is ours.";
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

}  // namespace

void ShowStatus(std::ostream& out, const Json& status) {
  out << "posternd " << String(status, "version") << ", pid " << status.at("pid") << ", up "
      << status.at("uptime_sec") << " s\n";
  if (const uint64_t failed = status.value("reapers_failed", uint64_t{0}); failed != 0)
    out << failed
        << " reapers have failed: families of programs that were cut off (posternd.log)\n";
  for (const Json& stack : status.at("stacks")) {
    out << "\nstack " << String(stack, "id") << ": " << stack.at("endpoints") << " sockets, "
        << stack.at("link_groups") << " link groups, "
        << Size(stack.at("memory_bytes").get<uint64_t>()) << '\n';
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

void ShowSockets(std::ostream& out, const Json& sockets) {
  std::vector<Row> rows = {
      {"Path", "State", "Local", "Peer", "Process", "Fd", "Rx-B", "Tx-B", "Reason"}};
  for (const Json& s : sockets) {
    rows.push_back({String(s, "path"), String(s, "state"), String(s, "local"), String(s, "peer"),
                    Holder(s), std::to_string(s.at("fd").get<long>()),
                    std::to_string(s.at("rx_bytes").get<uint64_t>()),
                    std::to_string(s.at("tx_bytes").get<uint64_t>()), String(s, "reason")});
  }
  ShowTable(out, rows);
}

void ShowExplanation(std::ostream& out, const Json& report) {
  const std::string name =
      std::to_string(report.at("pid").get<long>()) + " " + String(report, "comm");
  if (!report.at("known").get<bool>()) {
    out << "Process " << name
        << " is not known to posternd: it was not started with `postern`, has made no "
        << "socket yet, or is a static program, which the library can't be loaded into.\n";
    return;
  }
  out << "Process " << name << ":\n";
  for (const Json& s : report.at("sockets")) {
    out << "\nfd " << s.at("fd") << ": " << PathSentence(s) << '\n';
    const std::string reason = String(s, "reason");
    if (!reason.empty()) out << "  Reason " << reason << ": " << String(s, "reason_text") << '\n';
  }
  if (report.at("sockets").empty()) out << "\nIt holds no TCP socket now.\n";
  if (!report.at("fallbacks").empty()) out << "\nSo far its stack left to the kernel:\n";
  for (const Json& f : report.at("fallbacks")) {
    out << "  " << f.at("count") << " x " << String(f, "reason") << ": " << String(f, "text")
        << '\n';
  }
}

}  // namespace postern::ctl_command
