// SPDX-License-Identifier: Apache-2.0
// runner.cc - events in their order and at their times; the configuration of a script.
#include "runner.h"
#include "asserts.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace postern::scripts {

bool Runner::Fail(const Event& event, const std::string& what) {
  if (error_.empty()) error_ = path_ + ":" + std::to_string(event.line) + ": " + what;
  return false;
}

// ---- configuration

bool Runner::Options(const Script& script) {
  for (const auto& [name, value] : script.options) {
    if (name == "tolerance_usecs") {
      options_.tolerance_us = atoll(value.c_str());
    } else if (name == "tolerance_percent") {
      options_.tolerance_percent = atof(value.c_str());
    } else if (name == "mtu") {
      sut_.SetMtu(static_cast<uint32_t>(atoi(value.c_str())));
    } else if (name == "ip_version") {
      options_.is_v6 = value == "ipv6";
      sut_.SetMtu(1500);
    } else {
      notes_.push_back("option --" + name + " has no meaning here");
    }
  }
  return true;
}

namespace {

// Products in $(( )), which shell scripts use for sizes.
std::string Evaluate(std::string text) {
  for (size_t at; (at = text.find("$((")) != std::string::npos;) {
    const size_t end = text.find("))", at);
    if (end == std::string::npos) break;
    long long product = 1;
    const char* factor = text.c_str() + at + 3;
    for (char* stop = nullptr;; factor = stop + 1) {
      product *= strtoll(factor, &stop, 10);
      while (*stop == ' ') stop++;
      if (*stop != '*') break;
    }
    text.replace(at, end + 2 - at, std::to_string(product));
  }
  return text;
}

}  // namespace

// name=value, "name=value" or name="value with spaces", behind the word sysctl.
void Runner::SysctlLines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, '\n');) {
    const size_t start = line.find("sysctl");
    if (start == std::string::npos || line.find('#') < start) continue;
    std::string rest = Evaluate(line.substr(start + 6));
    for (size_t at = 0; (at = rest.find("net.", at)) != std::string::npos;) {
      const size_t equals = rest.find('=', at);
      if (equals == std::string::npos) break;
      const std::string name = rest.substr(at, equals - at);
      const bool opens = rest[equals + 1] == '"' || (at > 0 && rest[at - 1] == '"');
      const size_t from = equals + 1 + (rest[equals + 1] == '"' ? 1 : 0);
      const size_t end = std::min(rest.find_first_of(opens ? "\";" : " ;>", from), rest.size());
      if (!sut_.Sysctl(name, rest.substr(from, end - from))) notes_.push_back("sysctl " + name);
      at = end;
    }
  }
}

void Runner::Command(const std::string& command) {
  SysctlLines(command);
  const size_t script = command.find(".sh");
  if (script == std::string::npos) {
    if (command.find("sysctl") == std::string::npos) notes_.push_back("command " + command);
    return;
  }
  size_t from = command.find_last_of(" \n\t;", script);
  from = from == std::string::npos ? 0 : from + 1;
  const std::string folder = path_.substr(0, path_.find_last_of('/') + 1);
  std::ifstream file(folder + command.substr(from, script + 3 - from));
  if (!file) {
    notes_.push_back("command " + command);
    return;
  }
  std::ostringstream text;
  text << file.rdbuf();
  SysctlLines(text.str());
}

// ---- time

int64_t Runner::NowUs() const { return static_cast<int64_t>((sut_.NowNs() - start_ns_) / 1000); }

// In steps, since a call that blocks may return at each of them.
void Runner::AdvanceUs(int64_t us) {
  const uint64_t end_ns = start_ns_ + static_cast<uint64_t>(us) * 1000;
  while (sut_.NowNs() < end_ns) {
    sut_.AdvanceTo(std::min(end_ns, std::max(sut_.NextDeadlineNs(), sut_.NowNs() + 1)));
    Collect();
    if (!TryPending()) return;
  }
}

bool Runner::InTime(const Event& event, TimeKind kind, int64_t want_us, int64_t end_us,
                    int64_t is_us, int64_t since_us, const char* what) {
  if (kind == TimeKind::kAny) return true;
  const int64_t part = static_cast<int64_t>(options_.tolerance_percent / 100 *
                                            static_cast<double>(want_us - since_us));
  const int64_t tolerance_us = std::max(options_.tolerance_us, part);
  const bool is_range = kind == TimeKind::kRange || kind == TimeKind::kRelativeRange;
  if (!is_range) end_us = want_us;
  if (is_us >= want_us - tolerance_us && is_us <= end_us + tolerance_us) return true;
  char text[200];
  snprintf(text, sizeof(text), "%s at %.6f s, expected at %.6f%s%.6f s (tolerance %.6f s)", what,
           static_cast<double>(is_us) / 1e6, static_cast<double>(want_us) / 1e6,
           is_range ? " to " : " .. ", static_cast<double>(end_us) / 1e6,
           static_cast<double>(tolerance_us) / 1e6);
  return Fail(event, text);
}

// ---- events

bool Runner::Run(const Script& script) {
  if (!Options(script)) return false;
  for (const std::string& command : script.init_commands) Command(command);
  start_ns_ = sut_.NowNs();
  for (const Event& event : script.events) {
    if (!Play(event) || !error_.empty()) return false;
    if (!sut_.Problem().empty()) return Fail(event, "the system under test: " + sut_.Problem());
  }
  if (!pending_) return true;
  AdvanceUs(NowUs() + 1'000'000);
  return !pending_ || Fail(*pending_, "the call has not returned");
}

// Relative times count from now; those of packets in a row that come in from each other, so that
// nothing adds up.
bool Runner::Play(Event event) {
  const bool is_inbound = event.kind == Event::Kind::kPacket && event.packet.is_inbound;
  const bool is_relative = event.time == TimeKind::kRelative ||
                           event.time == TimeKind::kRelativeRange || event.time == TimeKind::kAny;
  const int64_t last_us = last_time_us_;
  if (is_relative) {
    const int64_t base_us = is_inbound && last_was_inbound_ ? last_time_us_ : NowUs();
    event.time_us += base_us;
    event.time_end_us += base_us;
    event.call.end_us += base_us;
  }
  last_was_inbound_ = is_inbound;
  last_time_us_ = event.time_us;
  if (options_.verbose)
    printf("%s:%d at %.6f s\n", path_.c_str(), event.line, static_cast<double>(NowUs()) / 1e6);
  if (event.kind == Event::Kind::kPacket && !is_inbound) {
    last_time_us_ = last_us;  // its tolerance counts from the event before
    const bool ok = PlayPacketOut(event);
    last_time_us_ = event.time_us;
    return ok;
  }
  AdvanceUs(event.time_us);
  if (!error_.empty()) return false;
  switch (event.kind) {
    case Event::Kind::kPacket:
      return event.packet.is_icmp ? PlayIcmp(event) : PlayPacketIn(event);
    case Event::Kind::kCall:
      return PlayCall(event);
    case Event::Kind::kCommand:
      Command(event.command);
      return true;
    case Event::Kind::kCode:
      return PlayCode(event);
  }
  return true;
}

// As packetdrill, the socket of the connection that a packet or a call was last about.
bool Runner::PlayCode(const Event& event) {
  Value fd;
  fd.number = current_ != nullptr ? current_->fd : -1;
  uint8_t info[512] = {};
  socklen_t bytes = sizeof(info);
  if (sut_.GetSockOpt(LiveFd(fd), IPPROTO_TCP, TCP_INFO, info, &bytes) < 0) {
    notes_.push_back("code without a connection");
    return true;
  }
  std::string error;
  return CheckAsserts(event.command, info, bytes, error, notes_) || Fail(event, error);
}

}  // namespace postern::scripts
