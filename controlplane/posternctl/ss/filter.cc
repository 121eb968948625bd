// filter.cc - see filter.h: a descent through the grammar, that leaves one function behind.
// SPDX-License-Identifier: Apache-2.0
#include "filter.h"

#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <initializer_list>
#include <map>
#include <set>

#include "base/ip_address.h"

namespace postern::ctl_command {
namespace {

using States = std::set<std::string>;

constexpr int kDepthMax = 64;  // brackets and `not`

const States& AllStates() {
  static const States all = {"ESTAB",      "SYN-SENT",  "SYN-RECV", "FIN-WAIT-1",
                             "FIN-WAIT-2", "TIME-WAIT", "UNCONN",   "CLOSE-WAIT",
                             "LAST-ACK",   "LISTEN",    "CLOSING",  "NEW",
                             "QUEUED",     "KERNEL",    "CLOSED",   "UNKNOWN"};
  return all;
}

// ss's names; those of Postern's that are no state of the kernel's count as what they are to a
// program.
States StatesOf(const std::string& word) {
  static const std::map<std::string, States> kNamed = {
      {"all", AllStates()},           {"established", {"ESTAB", "QUEUED"}},
      {"syn-sent", {"SYN-SENT"}},     {"syn-recv", {"SYN-RECV"}},
      {"fin-wait-1", {"FIN-WAIT-1"}}, {"fin-wait-2", {"FIN-WAIT-2"}},
      {"time-wait", {"TIME-WAIT"}},   {"closed", {"UNCONN", "NEW", "CLOSED", "KERNEL"}},
      {"close-wait", {"CLOSE-WAIT"}}, {"last-ack", {"LAST-ACK"}},
      {"listening", {"LISTEN"}},      {"listen", {"LISTEN"}},
      {"closing", {"CLOSING"}},       {"bucket", {"SYN-RECV", "TIME-WAIT"}}};
  static const States kLone = {"UNCONN", "NEW", "CLOSED", "KERNEL", "LISTEN"};
  if (const auto it = kNamed.find(word); it != kNamed.end()) return it->second;
  States states = AllStates();
  if (word == "connected" || word == "synchronized" || word == "big") {
    if (word != "big")
      for (const std::string& lone : kLone) states.erase(lone);
    if (word == "synchronized") states.erase("SYN-SENT");
    if (word == "big") states.erase("TIME-WAIT"), states.erase("SYN-RECV");
    return states;
  }
  throw AskError("'" + word + "' is no state (established, listening, connected, ...)");
}

// Brackets and operators are words of their own, wherever they stand.
std::vector<std::string> Split(const std::vector<std::string>& given) {
  constexpr char kAlone[] = "()", kOperators[] = "=!<>&|";
  std::vector<std::string> words;
  for (const std::string& part : given) {
    std::string word;
    bool is_operator = false;
    const auto end = [&] {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    };
    for (const char c : part) {
      const bool operates = strchr(kOperators, c) != nullptr;
      if (c == ' ' || c == '\t' || strchr(kAlone, c) != nullptr || operates != is_operator) end();
      is_operator = operates;
      if (c == ' ' || c == '\t') continue;
      word += c;
      if (strchr(kAlone, c) != nullptr) end();
    }
    end();
  }
  return words;
}

uint32_t ParseNumber(const std::string& text, uint32_t most) {
  uint32_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value > most)
    throw AskError("'" + text + "' is no number up to " + std::to_string(most));
  return value;
}

uint32_t ParsePort(std::string text) {
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) text.erase(0, colon + 1);
  if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos)
    return ParseNumber(text, UINT16_MAX);
  const servent* const service = getservbyname(text.c_str(), "tcp");
  if (service == nullptr) throw AskError("'" + text + "' is no port, and no service of TCP's");
  return ntohs(static_cast<uint16_t>(service->s_port));
}

// "10.0.0.1:80" or "[fd00::1]:*" as posternd writes it.
struct Name {
  IpAddress ip{};
  uint32_t port = 0;
};
Name NameIn(const Json& socket, const char* key) {
  const std::string text = socket.value(key, "");
  Name name;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return name;
  std::string ip = text.substr(0, colon);
  if (ip.starts_with('[')) ip = ip.substr(1, ip.find(']') - 1);
  if (const size_t scope = ip.find('%'); scope != std::string::npos) ip.resize(scope);
  (void)IpFromText(ip.c_str(), name.ip);
  (void)std::from_chars(text.data() + colon + 1, text.data() + text.size(), name.port);
  return name;
}

enum class Op { kIs, kIsNot, kMore, kLess, kAtLeast, kAtMost };

template <typename T>
bool Compare(const T& a, Op op, const T& b) {
  switch (op) {
    case Op::kIs:
      return a == b;
    case Op::kIsNot:
      return !(a == b);
    case Op::kMore:
      return b < a;
    case Op::kLess:
      return a < b;
    case Op::kAtLeast:
      return !(a < b);
    case Op::kAtMost:
      return !(b < a);
  }
  return false;
}

class Parser {
 public:
  explicit Parser(std::vector<std::string> words) : words_(std::move(words)) {}

  SocketTest Whole() {
    const States states = TakeStates();
    SocketTest test = AtEnd() ? [](const Json&) { return true; } : Or();
    if (!AtEnd()) throw AskError("what is '" + words_[at_] + "' doing there?");
    return
        [states, test](const Json& s) { return states.contains(s.value("state", "")) && test(s); };
  }

 private:
  bool AtEnd() const { return at_ == words_.size(); }
  bool Take(std::initializer_list<const char*> any) {
    for (const char* word : any) {
      if (AtEnd() || words_[at_] != word) continue;
      ++at_;
      return true;
    }
    return false;
  }
  std::string Next(const std::string& what) {
    if (AtEnd()) throw AskError("the filter ends where " + what + " is to come");
    return words_[at_++];
  }

  // As ss: listeners and lone sockets are shown, too, unless states are named.
  States TakeStates() {
    States states;
    bool any = false;
    for (;;) {
      if (Take({"state"})) {
        const States more = StatesOf(Next("a state"));
        states.insert(more.begin(), more.end());
      } else if (Take({"exclude"})) {
        if (!any) states = AllStates();
        for (const std::string& state : StatesOf(Next("a state"))) states.erase(state);
      } else {
        return any ? states : AllStates();
      }
      any = true;
    }
  }

  SocketTest Or() {
    SocketTest left = And();
    while (Take({"or", "||", "|"}))
      left = [left, right = And()](const Json& s) { return left(s) || right(s); };
    return left;
  }
  bool IsAtMore() const {
    return !AtEnd() && words_[at_] != ")" && words_[at_] != "or" && words_[at_] != "||" &&
           words_[at_] != "|";
  }
  SocketTest And() {
    SocketTest left = Not();
    while (Take({"and", "&&", "&"}) || IsAtMore())
      left = [left, right = Not()](const Json& s) { return left(s) && right(s); };
    return left;
  }
  SocketTest Not() {
    if (++depth_ > kDepthMax) throw AskError("the filter is too deep");
    SocketTest test;
    if (Take({"not", "!"})) {
      test = [inner = Not()](const Json& s) { return !inner(s); };
    } else if (Take({"("})) {
      test = Or();
      if (!Take({")"})) throw AskError("a ')' is missing");
    } else {
      test = Test();
    }
    --depth_;
    return test;
  }

  Op TakeOp(bool may_miss) {
    if (Take({"=", "==", "eq"})) return Op::kIs;
    if (Take({"!=", "ne", "neq"})) return Op::kIsNot;
    if (Take({">=", "ge", "geq"})) return Op::kAtLeast;
    if (Take({"<=", "le", "leq"})) return Op::kAtMost;
    if (Take({">", "gt"})) return Op::kMore;
    if (Take({"<", "lt"})) return Op::kLess;
    if (!may_miss)
      throw AskError("an operator (=, !=, <, >, ...) is missing before '" + Next("an operator") +
                     "'");
    return Op::kIs;
  }

  SocketTest Test() {
    const std::string key = Next("a test");
    if (key == "sport" || key == "dport") return PortTest(key == "sport" ? "local" : "peer");
    if (key == "src" || key == "dst") return AddressTest(key == "src" ? "local" : "peer");
    if (key == "pid" || key == "fd") {
      const Op op = TakeOp(false);
      const int64_t number = ParseNumber(Next("a number"), INT32_MAX);
      return [key, op, number](const Json& s) {
        return Compare(s.value(key, int64_t{-1}), op, number);
      };
    }
    if (key == "comm" || key == "path" || key == "reason") {
      const Op op = TakeOp(false);
      const std::string word = Next("a word");
      return
          [key, op, word](const Json& s) { return Compare(s.value(key, std::string()), op, word); };
    }
    throw AskError("'" + key + "' is no test: sport, dport, src, dst, pid, fd, comm, path, reason");
  }

  SocketTest PortTest(const char* which) {
    const Op op = TakeOp(false);
    const uint32_t port = ParsePort(Next("a port"));
    return [which, op, port](const Json& s) { return Compare(NameIn(s, which).port, op, port); };
  }

  SocketTest AddressTest(const char* which) {
    const Op op = TakeOp(true);
    if (op != Op::kIs && op != Op::kIsNot) throw AskError("addresses have no order: = or !=");
    std::string text = Next("an address");
    uint32_t port = 0;
    const size_t colon = text.rfind(':'), bracket = text.rfind(']');
    const bool is_v6 = bracket == std::string::npos && text.find(':') != colon;
    if (colon != std::string::npos && !is_v6 && (bracket == std::string::npos || colon > bracket)) {
      if (text.substr(colon) != ":*") port = ParsePort(text.substr(colon));
      text.resize(colon);
    }
    if (text.starts_with('[')) text = text.substr(1, text.find(']') - 1);
    uint32_t bits = 128;
    IpAddress ip{};
    const bool any = text.empty() || text == "*";
    if (const size_t slash = text.find('/'); slash != std::string::npos) {
      bits = ParseNumber(text.substr(slash + 1), 128);
      text.resize(slash);
      if (text.find(':') == std::string::npos) bits = 96 + (bits <= 32 ? bits : 32);
    }
    if (!any && !IpFromText(text.c_str(), ip)) throw AskError("'" + text + "' is no address");
    return [=](const Json& s) {
      const Name name = NameIn(s, which);
      const bool fits =
          (any || SamePrefix(name.ip.bytes, ip.bytes, bits)) && (port == 0 || name.port == port);
      return fits == (op == Op::kIs);
    };
  }

  const std::vector<std::string> words_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

SocketTest ParseFilter(const std::vector<std::string>& words) {
  return Parser(Split(words)).Whole();
}

}  // namespace postern::ctl_command
