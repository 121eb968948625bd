// ss_command.cc - see ss_command.h.
// SPDX-License-Identifier: Apache-2.0
#include "ss_command.h"

#include <iostream>

#include "../host/daemons.h"
#include "../line/columns.h"
#include "filter.h"

namespace postern::ctl_command {
namespace {

// What is not known is "-".
std::string Number(const Json& socket, const char* key) {
  const auto it = socket.find(key);
  return it != socket.end() && it->is_number() ? it->dump() : "-";
}

std::string Word(const Json& socket, const char* key) {
  const auto it = socket.find(key);
  return it != socket.end() && it->is_string() ? Plain(it->get<std::string>()) : "";
}

void Add(std::string& line, const char* name, const Json& socket, const char* key) {
  if (const std::string text = Number(socket, key); text != "-")
    line.append(" ").append(name).append(":").append(text);
}

// Behind the row, as ss does it.
std::string Details(const Json& s, const SsRequest& request) {
  std::string line;
  if (request.extended) {
    Add(line, "uid", s, "uid");
    Add(line, "ino", s, "inode");
    Add(line, "sk", s, "endpoint");
    if (const std::string stack = Word(s, "stack"); !stack.empty()) line += " stack:" + stack;
  }
  if (request.memory) {
    line += " ring:(r" + Number(s, "ring_rx") + ",t" + Number(s, "ring_tx") + ")";
    Add(line, "rb", s, "rcvbuf");
    Add(line, "tb", s, "sndbuf");
  }
  if (request.info) {
    if (s.contains("rtt_us")) {
      line += " rtt:" + std::to_string(s.value("rtt_us", 0) / 1000.0).substr(0, 6);
      Add(line, "cwnd", s, "cwnd");
    }
    Add(line, "ring_queue", s, "tx_queue");
    Add(line, "records", s, "records");
    Add(line, "accept_queue", s, "accept_queue");
    Add(line, "backlog", s, "backlog");
    Add(line, "recv_q", s, "recv_queue");
    Add(line, "send_q", s, "send_queue");
    Add(line, "sleepers", s, "sleepers");
  }
  return line;
}

void Show(const Json& sockets, const SsRequest& request) {
  std::vector<Row> rows;
  if (!request.no_header)
    rows.push_back({"Path", "State", "Local", "Peer", "Process", "Fd", "Rx-B", "Tx-B", "Reason"});
  for (const Json& s : sockets) {
    rows.push_back({Word(s, "path"), Word(s, "state"), Word(s, "local"), Word(s, "peer"),
                    Number(s, "pid") + "/" + Word(s, "comm"), Number(s, "fd"),
                    Number(s, "rx_bytes"), Number(s, "tx_bytes"), Word(s, "reason")});
    if (const std::string details = Details(s, request); !details.empty())
      rows.back().back() += "\n\t" + details;
  }
  ShowTable(std::cout, rows);
}

}  // namespace

bool ShowSs(const std::string& runtime_dir, const SsRequest& request) {
  const SocketTest is_shown = ParseFilter(request.filter);
  const bool details = request.info || request.memory || request.extended;
  Json sockets = Json::array();
  bool running = false;
  uint32_t unanswered = 0;
  for (const Daemon& daemon : DaemonsOf(runtime_dir, request.all, request.user)) {
    std::string text;
    try {
      text = AskText(daemon.runtime_dir, Report::kSockets, request.pid, details);
    } catch (const AskError& error) {
      if (!request.all && request.user.empty()) throw;
      // One that has stopped, or is another version's, is not to keep the others' from being shown.
      std::cerr << "posternctl: " << Plain(daemon.runtime_dir) << ": " << Plain(error.what())
                << '\n';
      unanswered++;
    }
    if (text.empty()) continue;
    running = true;
    Json answer = Json::parse(text);
    for (Json& s : answer.at("sockets")) {
      if (!is_shown(s)) continue;
      s["uid"] = daemon.uid;
      sockets.push_back(std::move(s));
    }
  }
  if (request.json) {
    std::cout << Json{{"running", running},
                      {"unanswered", unanswered},
                      {"sockets", std::move(sockets)}}
                     .dump(-1, ' ', false, Json::error_handler_t::replace)
              << '\n';
  } else if (running) {
    Show(sockets, request);
  }
  return running;
}

}  // namespace postern::ctl_command
