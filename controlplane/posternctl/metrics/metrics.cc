// metrics.cc - see metrics.h.
// SPDX-License-Identifier: Apache-2.0
//
// Each metric is a family of lines: its help, its kind, and a line for each stack, link group or
// posternd. All lines of a family stand together, as the format asks.
#include "metrics.h"

#include <iostream>
#include <map>
#include <vector>

#include "../host/daemons.h"
#include "../host/process_look.h"
#include "base/schema/counters.h"

namespace postern::ctl_command {
namespace {

// What a label's value may not hold as it is.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string Label(const char* name, const std::string& value) {
  return std::string(name) + "=\"" + Escaped(value) + "\"";
}

class Page {
 public:
  // `kind`: "counter" or "gauge".
  void Add(const std::string& name, const char* kind, const char* help, const std::string& labels,
           const Json& value) {
    if (!value.is_number()) return;
    Family& family = families_[name];
    if (family.lines.empty()) {
      order_.push_back(name);
      family.head = "# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n";
    }
    family.lines.push_back(name + "{" + labels + "} " + value.dump() + "\n");
  }
  void Print(std::ostream& out) const {
    for (const std::string& name : order_) {
      const Family& family = families_.at(name);
      out << family.head;
      for (const std::string& line : family.lines) out << line;
    }
  }

 private:
  struct Family {
    std::string head;
    std::vector<std::string> lines;
  };
  std::map<std::string, Family> families_;
  std::vector<std::string> order_;
};

const char* ProseOf(const std::string& counter) {
  for (uint32_t i = 0; i < kCounterCount; ++i) {
    if (counter == CounterName(i)) return CounterText(i);
  }
  return "A counter that this posternctl does not know.";
}

void AddStack(Page& page, const Json& stack, const std::string& user) {
  const std::string labels = Label("user", user) + "," + Label("stack", stack.value("id", ""));
  for (const auto& [name, value] : stack.at("counters").items()) {
    // Closed connections are in the counter, those that are open beside it.
    const Json total = stack.contains("live") && stack.at("live").contains(name)
                           ? Json(value.get<uint64_t>() + stack.at("live").at(name).get<uint64_t>())
                           : value;
    const bool is_bytes = name == "bytes_sent" || name == "bytes_received";
    const char* const prose =
        name == "bytes_sent"       ? "Payload that connections through shared memory have sent."
        : name == "bytes_received" ? "Payload that connections through shared memory have received."
                                   : ProseOf(name);
    const std::string metric = is_bytes ? (name == "bytes_sent" ? "postern_sent_bytes_total"
                                                                : "postern_received_bytes_total")
                                        : "postern_" + name + "_total";
    page.Add(metric, "counter", prose, labels, total);
  }
  for (const auto& [reason, count] : stack.at("fallbacks").items())
    page.Add("postern_fallbacks_total", "counter",
             "Sockets that were left to the kernel, by reason (posternctl explain).",
             labels + "," + Label("reason", reason), count);
  page.Add("postern_sockets", "gauge", "Accelerated sockets of a stack, and those that could be.",
           labels, stack.at("endpoints"));
  page.Add("postern_stack_processes", "gauge", "Processes that share a stack.", labels,
           stack.at("processes").size());
  page.Add("postern_stack_link_groups", "gauge", "Link groups of a stack.", labels,
           stack.at("link_groups"));
  page.Add("postern_stack_memory_bytes", "gauge", "Memory that a stack takes.", labels,
           stack.at("memory_bytes"));
}

void AddLink(Page& page, const Json& link, const std::string& user) {
  const std::string labels = Label("user", user) + "," + Label("link_group", link.value("id", ""));
  page.Add("postern_connections", "gauge", "Connections of a link group.", labels,
           link.at("connections"));
  page.Add("postern_rings", "gauge", "Rings of a link group that connections have.", labels,
           link.at("rings"));
  page.Add("postern_link_group_memory_bytes", "gauge", "Memory that a link group takes.", labels,
           link.at("memory_bytes"));
}

}  // namespace

bool ShowMetrics(const std::string& runtime_dir) {
  Page page;
  bool any = false;
  for (const Daemon& daemon : FindDaemons(runtime_dir)) {
    const std::string user = UserName(daemon.uid);
    const std::string of = Label("user", user) + "," + Label("runtime_dir", daemon.runtime_dir);
    Json status;
    try {
      status = Ask(daemon.runtime_dir, Report::kStatus);
    } catch (const std::exception&) {
      status = nullptr;  // said by postern_up
    }
    page.Add("postern_up", "gauge", "1: the posternd answers.", of, status.is_object() ? 1 : 0);
    if (!status.is_object()) continue;
    any = true;
    page.Add("postern_uptime_seconds", "gauge", "Since posternd was started.", of,
             status.at("uptime_sec"));
    page.Add("postern_broker_joined", "gauge", "1: posternd has joined the host's broker.", of,
             status.value("broker", false) ? 1 : 0);
    page.Add("postern_reapers_failed_total", "counter",
             "Families of programs that were cut off for what was in their memory.", of,
             status.at("reapers_failed"));
    page.Add("postern_listeners_refused_total", "counter",
             "Offers of listeners that the broker has refused.", of,
             status.value("listeners_refused", 0));
    page.Add("postern_listeners", "gauge", "Listeners in the directory.", of,
             status.at("listeners").size());
    for (const Json& stack : status.at("stacks")) AddStack(page, stack, user);
    for (const Json& link : status.at("link_groups")) AddLink(page, link, user);
  }
  page.Print(std::cout);
  return any;
}

}  // namespace postern::ctl_command
