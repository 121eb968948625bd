// SPDX-License-Identifier: Apache-2.0
// script.cc - the parser of packet scripts: recursive descent over characters, since what a word is
// depends on where it stands ("S." is flags in one place, ".1" a time in another).
#include "script.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace postern::scripts {
namespace {

class Parser {
 public:
  explicit Parser(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}

  bool Parse(Script& script) {
    Options(script);
    for (Space(); ok_ && Peek() == '`'; Space()) script.init_commands.push_back(Quoted('`'));
    for (Space(); ok_ && at_ < end_; Space()) {
      // packetdrill's cleanup command stands alone at the end.
      if (Peek() == '`') {
        Quoted('`');
        continue;
      }
      script.events.push_back(ParseEvent());
    }
    return ok_;
  }
  const std::string& error() const { return error_; }

 private:
  // ---- characters

  char Peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool Fail(const std::string& expected) {
    if (ok_) {
      const char* stop =
          static_cast<const char*>(memchr(at_, '\n', static_cast<size_t>(end_ - at_)));
      error_ = "line " + std::to_string(line_) + ": expected " + expected + " at '" +
               std::string(at_, stop == nullptr ? end_ : stop) + "'";
    }
    ok_ = false;
    return false;
  }
  void Step() {
    if (at_ >= end_) return;
    if (*at_ == '\n') line_++;
    at_++;
  }
  void SkipTo(const char* mark) {
    const size_t size = strlen(mark);
    while (at_ < end_ && strncmp(at_, mark, size) != 0) Step();
    for (size_t i = 0; i < size; i++) Step();
  }
  void Space() {
    for (;;) {
      if (isspace(static_cast<unsigned char>(Peek())) != 0) {
        Step();
      } else if (Peek() == '#' || (Peek() == '/' && at_[1] == '/')) {
        SkipTo("\n");
      } else if (Peek() == '/' && at_[1] == '*') {
        SkipTo("*/");
      } else {
        return;
      }
    }
  }
  // Takes `mark` if it is what comes next.
  bool Take(const char* mark) {
    Space();
    const size_t size = strlen(mark);
    if (strncmp(at_, mark, size) != 0) return false;
    at_ += size;
    return true;
  }
  // The same for a word, which must not go on behind it.
  bool TakeWord(const char* word) {
    Space();
    const size_t size = strlen(word);
    if (strncmp(at_, word, size) != 0 || IsWord(at_[size])) return false;
    at_ += size;
    return true;
  }
  bool Need(const char* mark) { return Take(mark) || Fail("'" + std::string(mark) + "'"); }
  static bool IsWord(char c) { return isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
  std::string Word() {
    Space();
    const char* from = at_;
    while (IsWord(Peek())) Step();
    return {from, at_};
  }
  std::string Quoted(char quote) {
    Space();
    if (Peek() != quote) return Fail("a quote"), "";
    Step();
    std::string out;
    while (at_ < end_ && Peek() != quote) {
      if (quote == '"' && Peek() == '\\') {
        Step();
        out += Peek() == 'n' ? '\n' : Peek();
      } else {
        out += Peek();
      }
      Step();
    }
    Step();
    return out;
  }
  int64_t Integer() {
    Space();
    char* stop = nullptr;
    const bool is_hex = at_[0] == '0' && (at_[1] == 'x' || at_[1] == 'X');
    const int64_t value = strtoll(at_, &stop, is_hex ? 16 : 10);
    if (stop == at_) Fail("a number");
    at_ = stop;
    return value;
  }
  uint32_t Unsigned() { return static_cast<uint32_t>(Integer()); }
  // Seconds, as microseconds. Only digits and one point: "0.1...0.2" is two of them.
  int64_t Time() {
    Space();
    std::string digits;
    bool has_point = false;
    while (isdigit(static_cast<unsigned char>(Peek())) != 0 ||
           (Peek() == '.' && !has_point && at_[1] != '.')) {
      has_point |= Peek() == '.';
      digits += Peek();
      Step();
    }
    if (digits.empty()) Fail("a time");
    return llround(strtod(digits.c_str(), nullptr) * 1e6);
  }

  // ---- script

  void Options(Script& script) {
    for (Space(); at_[0] == '-' && at_[1] == '-'; Space()) {
      at_ += 2;
      const char* from = at_;
      while (Peek() != '=' && isspace(static_cast<unsigned char>(Peek())) == 0 && at_ < end_)
        Step();
      const std::string name(from, at_);
      std::string value;
      if (Peek() == '=') {
        Step();
        from = at_;
        while (isspace(static_cast<unsigned char>(Peek())) == 0 && at_ < end_) Step();
        value.assign(from, at_);
      }
      script.options.emplace_back(name, value);
    }
  }

  Event ParseEvent() {
    Event event;
    event.line = line_;
    ParseTime(event);
    Space();
    event.line = line_;
    if (Peek() == '`') {
      event.kind = Event::Kind::kCommand;
      event.command = Quoted('`');
    } else if (Take("%{")) {
      event.kind = Event::Kind::kCode;
      const char* from = at_;
      SkipTo("}%");
      event.command.assign(from, at_);
    } else if (Peek() == '<' || Peek() == '>') {
      event.kind = Event::Kind::kPacket;
      event.packet = ParsePacket();
    } else {
      event.kind = Event::Kind::kCall;
      event.call = ParseCall();
    }
    return event;
  }

  void ParseTime(Event& event) {
    blocks_ = false;
    if (Take("*")) {
      event.time = TimeKind::kAny;
      return;
    }
    const bool is_relative = Take("+");
    event.time = is_relative ? TimeKind::kRelative : TimeKind::kAbsolute;
    event.time_us = Time();
    if (Take("~")) {
      if (is_relative) Need("+");
      event.time = is_relative ? TimeKind::kRelativeRange : TimeKind::kRange;
      event.time_end_us = Time();
    }
    if (Take("...")) {
      event.call.blocks = true;
      event.call.end_us = Time();
    }
    blocks_ = event.call.blocks;
    end_us_ = event.call.end_us;
  }

  // ---- packets

  PacketSpec ParsePacket() {
    PacketSpec packet;
    packet.is_inbound = Take("<");
    if (!packet.is_inbound) Need(">");
    Space();
    if (Peek() == '(' || Peek() == '[') ParseIpInfo(packet);
    if (TakeWord("icmp")) {
      ParseIcmp(packet);
      return packet;
    }
    Space();
    if (isdigit(static_cast<unsigned char>(Peek())) != 0) {
      packet.source_port = static_cast<uint16_t>(Unsigned());
      Need(">");
      packet.destination_port = static_cast<uint16_t>(Unsigned());
    }
    ParseFlags(packet);
    ParseSeq(packet);
    if (TakeWord("ack")) {
      packet.has_ack = true;
      packet.ack = Unsigned();
    }
    if (TakeWord("win")) {
      packet.has_window = true;
      packet.window = static_cast<uint16_t>(Unsigned());
    }
    if (TakeWord("urg")) packet.urgent = static_cast<uint16_t>(Unsigned());
    if (Take("<")) ParseOptions(packet);
    return packet;
  }

  void ParseIpInfo(PacketSpec& packet) {
    const char* close = Take("(") ? ")" : (Need("["), "]");
    while (ok_ && !Take(close)) {
      Take(",");
      if (TakeWord("tos")) {
        packet.has_tos = true;
        packet.tos = static_cast<uint8_t>(Unsigned());
      } else if (TakeWord("ttl") || TakeWord("flowlabel")) {
        Unsigned();
      } else {
        const std::string ecn = Word();
        packet.has_tos = packet.ecn_only = true;
        packet.any_ect = ecn == "ect01";
        if (ecn == "ect0")
          packet.tos = 2;
        else if (ecn == "ect1" || ecn == "ect01")
          packet.tos = 1;
        else if (ecn == "ce")
          packet.tos = 3;
        else if (ecn != "noecn")
          Fail("noecn, ect0, ect1, ect01, ce, tos or ttl");
      }
    }
  }

  void ParseFlags(PacketSpec& packet) {
    Space();
    static const char kNames[] = "FSRP.UEW";
    const char* from = at_;
    for (; at_ < end_ && (strchr(kNames, Peek()) != nullptr || Peek() == '-'); Step()) {
      if (Peek() == '-') continue;
      packet.flags |= static_cast<uint8_t>(1 << (strchr(kNames, Peek()) - kNames));
    }
    if (at_ == from) Fail("flags");
  }

  void ParseSeq(PacketSpec& packet) {
    packet.seq = Unsigned();
    Need(":");
    const uint32_t end = Unsigned();
    Need("(");
    packet.bytes = Unsigned();
    Need(")");
    if (ok_ && end - packet.seq != packet.bytes) Fail("an end that is begin and length");
  }

  void Add32(Bytes& out, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
      out.push_back(static_cast<uint8_t>(value >> shift));
  }

  void ParseOptions(PacketSpec& packet) {
    if (Take("...")) {
      packet.any_options = true;
      Need(">");
      return;
    }
    Bytes& out = packet.options;
    do {
      if (TakeWord("nop")) {
        out.push_back(1);
      } else if (TakeWord("eol")) {
        out.push_back(0);
      } else if (TakeWord("mss")) {
        const uint32_t mss = Unsigned();
        out.insert(out.end(), {2, 4, static_cast<uint8_t>(mss >> 8), static_cast<uint8_t>(mss)});
      } else if (TakeWord("wscale")) {
        out.insert(out.end(), {3, 3, static_cast<uint8_t>(Unsigned())});
      } else if (TakeWord("sackOK")) {
        out.insert(out.end(), {4, 2});
      } else if (TakeWord("sack")) {
        const size_t start = out.size();
        out.insert(out.end(), {5, 2});
        for (Space(); ok_ && isdigit(static_cast<unsigned char>(Peek())) != 0; Space()) {
          Add32(out, Unsigned());
          Need(":");
          Add32(out, Unsigned());
          out[start + 1] = static_cast<uint8_t>(out[start + 1] + 8);
        }
      } else if (TakeWord("TS")) {
        out.insert(out.end(), {8, 10});
        if (!TakeWord("val")) Fail("val");
        Add32(out, Unsigned());
        if (!TakeWord("ecr")) Fail("ecr");
        Add32(out, Unsigned());
      } else {
        Fail("an option that is known here");
      }
    } while (ok_ && Take(","));
    Need(">");
    while (out.size() % 4 != 0) out.push_back(0);
  }

  void ParseIcmp(PacketSpec& packet) {
    packet.is_icmp = true;
    packet.icmp_type = Word();
    Space();
    if (isalpha(static_cast<unsigned char>(Peek())) != 0 && strncmp(at_, "mtu", 3) != 0)
      packet.icmp_code = Word();
    if (TakeWord("mtu")) packet.mtu = Unsigned();
    if (Take("[")) {
      ParseSeq(packet);
      Need("]");
    }
  }

  // ---- calls

  CallSpec ParseCall() {
    CallSpec call;
    call.blocks = blocks_;
    call.end_us = end_us_;
    call.name = Word();
    if (call.name.empty()) Fail("a call");
    Need("(");
    while (ok_ && !Take(")")) {
      call.arguments.push_back(Expression());
      if (!Take(",") && Peek() != ')') Fail("',' or ')'");
    }
    Need("=");
    call.result = Expression();
    Space();
    if (isupper(static_cast<unsigned char>(Peek())) != 0) {
      const std::string name = Word();
      int64_t value = 0;
      if (!SymbolValue(name, value)) Fail("an errno that is known, not " + name);
      call.error = static_cast<int>(value);
    }
    if (Take("(")) SkipTo(")");
    return call;
  }

  Value Expression() {
    Value value = Term();
    while (ok_ && Take("|")) {
      const Value more = Term();
      if (value.kind != Value::Kind::kNumber || more.kind != Value::Kind::kNumber)
        Fail("numbers around '|'");
      value.number |= more.number;
    }
    return value;
  }

  Value Term() {
    Value value;
    Space();
    const char c = Peek();
    if (Take("...")) return value;
    if (c == '"') {
      value.kind = Value::Kind::kString;
      value.text = Quoted('"');
      Take("...");  // "abc"...: goes on with anything
    } else if (Take("[")) {
      value.kind = Value::Kind::kList;
      while (ok_ && !Take("]")) {
        value.items.push_back(Expression());
        Take(",");
      }
    } else if (Take("{")) {
      value.kind = Value::Kind::kStruct;
      while (ok_ && !Take("}")) {
        value.items.push_back(Member());
        Take(",");
      }
    } else if (isdigit(static_cast<unsigned char>(c)) != 0 || c == '-') {
      value.kind = Value::Kind::kNumber;
      value.number = Integer();
    } else {
      Name(value);
    }
    return value;
  }

  // A symbol, or a call such as htons(80) or inet_addr("1.2.3.4"), which is its argument.
  void Name(Value& value) {
    const std::string name = Word();
    if (name.empty()) {
      Fail("an expression");
    } else if (Take("(")) {
      value = Expression();
      Need(")");
    } else if (SymbolValue(name, value.number)) {
      value.kind = Value::Kind::kNumber;
    } else {
      value.kind = Value::Kind::kWord;
      value.text = name;
    }
  }

  // name = value, name(n) = value, or a value alone.
  Value Member() {
    Space();
    const char* const start = at_;
    const int line = line_;
    Value member;
    member.kind = Value::Kind::kStruct;
    member.text = Word();
    if (!member.text.empty()) {
      if (Take("(")) SkipTo(")");
      if (Take("=")) {
        member.items.push_back(Expression());
        return member;
      }
    }
    at_ = start;
    line_ = line;
    return Expression();
  }

  const char* at_;
  const char* end_;
  int line_ = 1;
  bool ok_ = true, blocks_ = false;
  int64_t end_us_ = 0;
  std::string error_;
};

}  // namespace

const Value* Value::Member(const char* name) const {
  for (const Value& item : items) {
    if (item.kind == Kind::kStruct && item.text == name && item.items.size() == 1)
      return &item.items[0];
  }
  return nullptr;
}

bool ParseScript(const std::string& text, Script& script, std::string& error) {
  Parser parser(text);
  if (parser.Parse(script)) return true;
  error = parser.error();
  return false;
}

}  // namespace postern::scripts
