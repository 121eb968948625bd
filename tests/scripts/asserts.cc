// SPDX-License-Identifier: Apache-2.0
// asserts.cc - conditions about TCP_INFO: names, and a parser that descends.
#include "asserts.h"

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>

#include "script.h"

namespace postern::scripts {
namespace {

struct Field {
  const char* name;
  size_t off, bytes;
};
// Where Linux has them; the C library's header ends before the last ones.
constexpr Field kFields[] = {
    {"tcpi_state", 0, 1},
    {"tcpi_ca_state", 1, 1},
    {"tcpi_retransmits", 2, 1},
    {"tcpi_probes", 3, 1},
    {"tcpi_backoff", 4, 1},
    {"tcpi_options", 5, 1},
    {"tcpi_rto", 8, 4},
    {"tcpi_ato", 12, 4},
    {"tcpi_snd_mss", 16, 4},
    {"tcpi_rcv_mss", 20, 4},
    {"tcpi_unacked", 24, 4},
    {"tcpi_sacked", 28, 4},
    {"tcpi_lost", 32, 4},
    {"tcpi_retrans", 36, 4},
    {"tcpi_last_data_sent", 44, 4},
    {"tcpi_last_data_recv", 52, 4},
    {"tcpi_last_ack_recv", 56, 4},
    {"tcpi_pmtu", 60, 4},
    {"tcpi_rcv_ssthresh", 64, 4},
    {"tcpi_rtt", 68, 4},
    {"tcpi_rttvar", 72, 4},
    {"tcpi_snd_ssthresh", 76, 4},
    {"tcpi_snd_cwnd", 80, 4},
    {"tcpi_advmss", 84, 4},
    {"tcpi_reordering", 88, 4},
    {"tcpi_rcv_rtt", 92, 4},
    {"tcpi_rcv_space", 96, 4},
    {"tcpi_total_retrans", 100, 4},
    {"tcpi_pacing_rate", 104, 8},
    {"tcpi_max_pacing_rate", 112, 8},
    {"tcpi_bytes_acked", 120, 8},
    {"tcpi_bytes_received", 128, 8},
    {"tcpi_segs_out", 136, 4},
    {"tcpi_segs_in", 140, 4},
    {"tcpi_notsent_bytes", 144, 4},
    {"tcpi_min_rtt", 148, 4},
    {"tcpi_data_segs_in", 152, 4},
    {"tcpi_data_segs_out", 156, 4},
    {"tcpi_delivery_rate", 160, 8},
    {"tcpi_busy_time", 168, 8},
    {"tcpi_rwnd_limited", 176, 8},
    {"tcpi_sndbuf_limited", 184, 8},
    {"tcpi_delivered", 192, 4},
    {"tcpi_delivered_ce", 196, 4},
    {"tcpi_bytes_sent", 200, 8},
    {"tcpi_bytes_retrans", 208, 8},
    {"tcpi_dsack_dups", 216, 4},
    {"tcpi_reord_seen", 220, 4},
    {"tcpi_rcv_ooopack", 224, 4},
    {"tcpi_snd_wnd", 228, 4},
    {"tcpi_rcv_wnd", 232, 4},
    {"tcpi_rehash", 236, 4},
    {"tcpi_total_rto", 240, 2},
    {"tcpi_total_rto_recoveries", 242, 2},
    {"tcpi_total_rto_time", 244, 4},
};

// As packetdrill names them.
struct Constant {
  const char* name;
  int64_t value;
};
constexpr Constant kConstants[] = {
    {"TCP_ESTABLISHED", 1},     {"TCP_SYN_SENT", 2},  {"TCP_SYN_RECV", 3},    {"TCP_FIN_WAIT1", 4},
    {"TCP_FIN_WAIT2", 5},       {"TCP_TIME_WAIT", 6}, {"TCP_CLOSE", 7},       {"TCP_CLOSE_WAIT", 8},
    {"TCP_LAST_ACK", 9},        {"TCP_LISTEN", 10},   {"TCP_CLOSING", 11},    {"TCP_CA_Open", 0},
    {"TCP_CA_Disorder", 1},     {"TCP_CA_CWR", 2},    {"TCP_CA_Recovery", 3}, {"TCP_CA_Loss", 4},
    {"TCPI_OPT_TIMESTAMPS", 1}, {"TCPI_OPT_SACK", 2}, {"TCPI_OPT_WSCALE", 4}, {"TCPI_OPT_ECN", 8},
};

class Condition {
 public:
  Condition(const char* at, const void* info, size_t bytes)
      : at_(at), info_(static_cast<const uint8_t*>(info)), bytes_(bytes) {}

  bool Value(int64_t& value) {
    value = Or();
    Space();
    return ok_ && (*at_ == 0 || *at_ == ',' || *at_ == ';' || *at_ == '#');
  }

 private:
  void Space() {
    while (*at_ == ' ' || *at_ == '\t') at_++;
  }
  bool Take(const char* text) {
    Space();
    const size_t length = strlen(text);
    if (strncmp(at_, text, length) != 0) return false;
    const bool is_word = isalpha(static_cast<unsigned char>(text[0])) != 0;
    if (is_word && (isalnum(static_cast<unsigned char>(at_[length])) != 0 || at_[length] == '_'))
      return false;
    at_ += length;
    return true;
  }

  int64_t Or() {
    int64_t v = And();
    while (Take("or")) v = static_cast<int64_t>(And() != 0) | static_cast<int64_t>(v != 0);
    return v;
  }
  int64_t And() {
    int64_t v = Not();
    while (Take("and")) v = static_cast<int64_t>(Not() != 0) & static_cast<int64_t>(v != 0);
    return v;
  }
  int64_t Not() { return Take("not") ? static_cast<int64_t>(Not() == 0) : Comparison(); }

  // a < b < c, as in Python.
  int64_t Comparison() {
    int64_t left = Sum();
    bool all = true, any = false;
    for (;;) {
      const char* const kWays[] = {"==", "!=", "<=", ">=", "<", ">"};
      size_t way = 0;
      while (way < std::size(kWays) && !Take(kWays[way])) way++;
      if (way == std::size(kWays)) return any ? static_cast<int64_t>(all) : left;
      const int64_t right = Sum();
      const bool holds[] = {left == right, left != right, left <= right, left >= right,
                            left<right, left> right};
      all = all && holds[way];
      any = true;
      left = right;
    }
  }
  int64_t Sum() {
    int64_t v = Product();
    for (;;) {
      if (Take("+")) {
        v += Product();
      } else if (Take("-")) {
        v -= Product();
      } else if (Take("&")) {
        v &= Product();
      } else {
        return v;
      }
    }
  }
  int64_t Product() {
    int64_t v = Atom();
    for (;;) {
      if (Take("*")) {
        v *= Atom();
      } else if (Take("//") || Take("/")) {
        const int64_t by = Atom();
        ok_ = ok_ && by != 0;
        v = by != 0 ? v / by : 0;
      } else {
        return v;
      }
    }
  }
  int64_t Atom() {
    if (Take("-")) return -Atom();
    if (Take("(")) {
      const int64_t v = Or();
      ok_ = ok_ && Take(")");
      return v;
    }
    Space();
    if (isdigit(static_cast<unsigned char>(*at_)) != 0) {
      char* end = nullptr;
      const int64_t v = strtoll(at_, &end, 0);
      at_ = end;
      return v;
    }
    const char* from = at_;
    while (isalnum(static_cast<unsigned char>(*at_)) != 0 || *at_ == '_') at_++;
    return Named(std::string(from, at_));
  }
  int64_t Named(const std::string& name) {
    for (const Field& f : kFields) {
      if (name != f.name || f.off + f.bytes > bytes_) continue;
      uint64_t v = 0;
      memcpy(&v, info_ + f.off, f.bytes);
      return static_cast<int64_t>(v);
    }
    for (const Constant& c : kConstants) {
      if (name == c.name) return c.value;
    }
    if (name == "tcpi_snd_wscale" || name == "tcpi_rcv_wscale") {
      constexpr size_t kScales = 6;  // bit fields
      const uint8_t both = kScales < bytes_ ? info_[kScales] : 0;
      return name[5] == 's' ? both & 15 : both >> 4;
    }
    ok_ = false;
    return 0;
  }

  const char* at_;
  const uint8_t* info_;
  size_t bytes_;
  bool ok_ = true;
};

}  // namespace

bool CheckAsserts(const std::string& code, const void* info, size_t info_bytes, std::string& error,
                  std::vector<std::string>& notes) {
  std::istringstream lines(code);
  for (std::string line; std::getline(lines, line, '\n');) {
    const size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] == '#') continue;
    if (line.compare(at, 7, "assert ") != 0) {
      notes.push_back("code " + line.substr(at));
      continue;
    }
    int64_t value = 0;
    const std::string condition = line.substr(at + 7);
    if (!Condition(condition.c_str(), info, info_bytes).Value(value)) {
      notes.push_back("code " + line.substr(at));
    } else if (value == 0) {
      error = "does not hold: " + condition;
      // What its first name is says what is wrong.
      const size_t name = condition.find("tcpi_");
      const size_t end = condition.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789", name);
      if (name != std::string::npos) {
        const std::string first = condition.substr(name, end - name);
        int64_t is = 0;
        if (Condition(first.c_str(), info, info_bytes).Value(is))
          error += " (" + first + " is " + std::to_string(is) + ")";
      }
      return false;
    }
  }
  return true;
}

}  // namespace postern::scripts
